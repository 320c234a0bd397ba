// Calls of the admin API, and the one event stream of the page.
import {now, setClock, t} from "./text.js"

// An answer of the admin API that is an error, or no answer at all (status 0).
export class ApiError extends Error {
	constructor(status, code, message) {
		super(message)
		this.status = status
		this.code = code
	}
}

/** Who is logged in, and how the shell asks for a login. @type {{me: Me | null, login: (reason?: string) => Promise<void>}} */
export const session = {me: null, login: async () => {}}

const RANKS = ["viewer", "operator", "admin"]

// Whether the role of this login reaches another.
export const may = role => RANKS.indexOf(session.me?.role ?? "") >= RANKS.indexOf(role)

// Reads who is logged in; a stale CSRF value is replaced too.
export async function readMe() {
	session.me = await call("/admin/me")
	return session.me
}

/** Sends a request; a missing login is asked for and the request repeated.
 * @param {string} path @param {{body?: any, signal?: AbortSignal, anonymous?: boolean}} [options] @returns {Promise<Response>} */
export async function send(path, options = {}) {
	for (let again = 0; ; again++) {
		const answer = await request(path, options)
		if (answer.ok) return answer
		const error = await problem(answer)
		if (options.anonymous || again > 1) throw error
		if (error.status === 401) await session.login(error.code)
		else if (error.code === "csrf") session.me = await (await request("/admin/me")).json()
		else throw error
	}
}

/** @param {string} path @param {{body?: any, signal?: AbortSignal}} [options] */
async function request(path, {body, signal} = {}) {
	const write = body && {method: "POST", body: JSON.stringify(body), headers: {"content-type": "application/json", "x-routecodex-csrf": session.me?.csrf ?? ""}}
	try {
		return await fetch(path, {...write, signal, cache: "no-store"})
	} catch (error) {
		if (signal?.aborted) throw error
		throw new ApiError(0, "unreachable", t("err.unreachable"))
	}
}

async function problem(answer) {
	const found = await answer.json().catch(() => ({}))
	const error = found?.error ?? {}
	return new ApiError(answer.status, found?.code ?? error.code ?? "", error.message ?? `HTTP ${answer.status}`)
}

/** Calls the admin API and returns its JSON. @param {string} path @param {{body?: any, anonymous?: boolean}} [options] @returns {Promise<any>} */
export async function call(path, options) {
	const answer = await send(path, options)
	return answer.status === 204 ? null : answer.json()
}

// Adds parameters to a path; empty ones are left out, and the chosen server is added.
export function url(path, params = {}) {
	const query = new URLSearchParams()
	const server = new URLSearchParams(location.search).get("server")
	for (const [name, value] of Object.entries({...params, server})) {
		for (const one of Array.isArray(value) ? value : [value]) if (one != null && one !== "") query.append(name, one)
	}
	const text = query.toString()
	return text ? `${path}?${text}` : path
}

const TOPICS = ["hello", "requests", "stats", "health", "sessions", "routing", "config", "lag", "bye"]
const WAITS = [500, 1000, 2000, 4000, 8000]
const HIDDEN_MS = 60_000

// The event stream: reconnects by itself, resumes where it broke off, and is closed while the tab is hidden.
class Live extends EventTarget {
	state = "offline"
	// When the last data came, by the clock of the server.
	last = now()
	paused = false
	#id = ""
	#ui = ""
	#tries = 0
	#seen = false
	#wanted = false
	#source = null
	#timer = 0
	#hiding = 0
	#opening = false

	constructor() {
		super()
		document.addEventListener("visibilitychange", () => this.#seenOrHidden())
		addEventListener("online", () => this.#retryNow())
		addEventListener("offline", () => this.#lost())
		addEventListener("pagehide", () => this.#close())
		addEventListener("pageshow", event => event.persisted && this.#retryNow())
	}

	start() {
		this.#wanted = true
		this.#open()
	}

	stop() {
		this.#wanted = false
		this.#close()
		this.#become("offline")
	}

	// Forgets the position, for another server.
	restart() {
		this.#id = ""
		this.#close()
		this.start()
	}

	pause(paused) {
		this.paused = paused
		this.#announce()
	}

	// What the indicator shows.
	get shown() {
		return this.state === "live" && this.paused ? "paused" : this.state
	}

	#seenOrHidden() {
		clearTimeout(this.#hiding)
		if (document.hidden) this.#hiding = setTimeout(() => this.#close(), HIDDEN_MS)
		else if (this.#wanted && !this.#source) this.#retryNow()
	}

	#retryNow() {
		if (!this.#wanted || (this.#source && this.state === "live")) return
		this.#tries = 0
		this.#close()
		this.#open(this.state !== "offline")
	}

	#close() {
		clearTimeout(this.#timer)
		this.#source?.close()
		this.#source = null
	}

	// Opens the stream; a retry first asks who is logged in, because EventSource hides the status of a refusal.
	async #open(check = false) {
		if (this.#opening) return
		this.#opening = true
		try {
			if (check) await readMe()
		} catch {
			return this.#lost()
		} finally {
			this.#opening = false
		}
		if (!this.#wanted || this.#source) return
		const source = new EventSource(url("/admin/events", {topics: "requests,stats,health,sessions,routing,config", last_event_id: this.#id}))
		this.#source = source
		source.onerror = () => this.#source === source && this.#lost()
		for (const topic of TOPICS) source.addEventListener(topic, event => this.#source === source && this.#take(topic, (event)))
	}

	#lost() {
		this.#close()
		if (!this.#wanted) return
		this.#become(navigator.onLine ? "reconnecting" : "offline")
		const wait = WAITS[Math.min(this.#tries++, WAITS.length - 1)]
		if (!document.hidden) this.#timer = setTimeout(() => this.#open(true), wait * (0.75 + Math.random() / 2))
	}

	#take(topic, event) {
		const data = JSON.parse(event.data)
		if (event.lastEventId) this.#id = event.lastEventId
		if (topic === "hello") this.#hello(data)
		this.last = now()
		this.dispatchEvent(new CustomEvent(topic, {detail: data}))
		if (topic === "lag") this.dispatchEvent(new CustomEvent("stale"))
		if (topic === "bye") this.#lost()
	}

	#hello(data) {
		setClock(data.at)
		this.#tries = 0
		this.#become("live")
		if (this.#seen && !data.resumed) this.dispatchEvent(new CustomEvent("stale"))
		this.#seen = true
		if (this.#ui && this.#ui !== data.ui) this.dispatchEvent(new CustomEvent("upgraded"))
		this.#ui ||= data.ui
	}

	#become(state) {
		if (this.state === state) return
		this.state = state
		this.#announce()
	}

	#announce() {
		this.dispatchEvent(new CustomEvent("state"))
	}
}

export const live = new Live()
