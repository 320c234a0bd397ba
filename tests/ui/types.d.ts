// Shapes that the modules of the console share; by these names JSDoc refers to them.

/** What a page may use of the shell. */
interface Shell {
  /** A parameter of the address; empty when it is not there. */
  q(name: string): string;
  /** Changes parameters of the address; empty ones are removed. */
  set(params: Record<string, any>, replace?: any): void;
  link(name: string, params?: Record<string, any>): string;
  /** The address of the requests, filtered. */
  to(params: Record<string, any>): string;
  /** Listens to a topic of the event stream until the page is left. */
  on(topic: string, act: (data: any) => void): void;
  /** Acts again and again until the page is left, not while the tab is hidden. */
  every(ms: number, act: () => any): void;
}

/** What a page gives to the shell. */
interface View {
  head?: any;
  /** What fills the page below its head; `page` is scrolled as a whole. */
  body?: any;
  page?: any;
  /** The parameters of the address changed. */
  update?(): any;
  /** Data may be stale: fetch it again; `polled`: only because some time has passed. */
  refresh?(polled?: boolean): any;
  key?(name: string, event: any): any;
  close?(): void;
}

/** The one export of a page's module. */
type Page = (shell: Shell) => View;

/** `GET /admin/me`. */
interface Me {
  name: string;
  role: "viewer" | "operator" | "admin";
  csrf: string;
  capture: string;
  server: { id: string; url: string; version: string; workers: number; started_at: string };
}
