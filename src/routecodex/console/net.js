// Calls of the admin API, and the one event stream of the page.
import {now, setClock} from "./text.js"

// An error of the admin API, or no answer at all (status 0).
const apiError = (status, code, message = code) => Object.assign(new Error(message), {status, code})

/** Who is logged in, and how the shell asks for a login. @type {{me: Me | null, login: (reason?: string) => Promise<void>}} */
export const session = {me: null, login: async () => {}}

const RANKS = ["viewer", "operator", "admin"]

export const may = role => RANKS.indexOf(session.me?.role ?? "") >= RANKS.indexOf(role)

// Reads who is logged in; a stale CSRF value is replaced too.
export async function readMe(options) {
	const me = await (await send("/admin/me", options)).json()
	me.server.started_at *= 1000
	session.me = me
}

const server = () => new URLSearchParams(location.search).get("server")

// Adds parameters to a path; empty ones are left out, and the chosen server is added.
export function url(path, params = {}) {
	const query = new URLSearchParams()
	for (const [name, value] of Object.entries({...params, server: server()})) {
		for (const one of [value].flat()) if (one != null && one !== "") query.append(name, one)
	}
	return [path, query].join(query.size ? "?" : "")
}

/** Reads from the admin API. @param {string} name @param {any} [params] @returns {Promise<any>} */
export const get = async (name, params) => (await send(url(`/admin/${name}`, params))).json()

/** Writes by the admin API. @param {string} name @param {any} body @param {any} [options] @returns {Promise<any>} */
export async function post(name, body, options) {
	const answer = await send(url(`/admin/${name}`), {body, ...options})
	return answer.status === 204 ? null : answer.json()
}

/** Sends a request; a missing login is asked for and the request repeated.
 * @param {string} path @param {{body?: any, signal?: AbortSignal, anonymous?: boolean}} [options] @returns {Promise<Response>} */
export async function send(path, {body, signal, anonymous} = {}) {
	for (let again = 0; ; again++) {
		const headers = {"content-type": "application/json", "x-routecodex-csrf": session.me?.csrf ?? ""}
		const write = body && {method: "POST", body: JSON.stringify(body), headers}
		const answer = await fetch(path, {...write, signal, cache: "no-store"}).catch(error => {
			throw signal?.aborted ? error : apiError(0, "unreachable")
		})
		if (answer.ok) return answer
		const {error = {}, code = error.code} = await answer.json().catch(() => ({}))
		if (answer.status === 401 && !anonymous) await session.login(code)
		else if (code === "csrf" && !again) await readMe()
		else throw apiError(answer.status, code, error.message ?? `HTTP ${answer.status}`)
	}
}

const TOPICS = ["requests", "stats", "health", "sessions", "routing", "config"]
const WAITS = [500, 1000, 2000, 4000, 8000]
const HIDDEN_MS = 60_000

// The event stream: reconnects, resumes where it broke off, is closed while the tab is hidden.
class Live extends EventTarget {
	state = "offline"
	// When the last data came, by the clock of the server.
	last = now()
	paused = false
	#id = ""
	#ui = ""
	#tries = 0
	#wanted = false
	#source = null
	#timer = 0
	#hiding = 0
	#opening = false
	#staleAt = 0

	constructor() {
		super()
		document.addEventListener("visibilitychange", () => {
			clearTimeout(this.#hiding)
			if (document.hidden) this.#hiding = setTimeout(() => this.#close(), HIDDEN_MS)
			else this.#retryNow()
		})
		addEventListener("online", () => this.#retryNow())
		addEventListener("offline", () => this.#lost())
	}

	start() {
		this.#wanted = true
		this.#open()
	}

	restart() {
		this.#id = ""
		this.#close()
		this.#open()
	}

	pause(paused) {
		this.paused = paused
		this.#tell("state")
	}

	get shown() {
		return this.state === "live" && this.paused ? "paused" : this.state
	}

	#retryNow() {
		if (!this.#wanted || (this.#source && this.state === "live")) return
		this.#tries = 0
		this.#close()
		this.#open(true)
	}

	#close() {
		clearTimeout(this.#timer)
		this.#source?.close()
		this.#source = null
	}

	// Opens the stream; a retry asks who is logged in: EventSource hides the status of a refusal.
	async #open(check = false) {
		if (this.#opening || this.#source) return
		this.#opening = true
		try {
			if (check) await readMe()
		} catch {
			return this.#lost()
		} finally {
			this.#opening = false
		}
		const source = new EventSource(url("/admin/events", {topics: TOPICS.join(), last_event_id: this.#id}))
		this.#source = source
		source.onerror = () => this.#source === source && this.#lost()
		for (const topic of [...TOPICS, "hello", "lag", "bye"]) source.addEventListener(topic, event => this.#source === source && this.#take(topic, event))
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
		if (topic === "hello") this.#hello(data)
		if (event.lastEventId) this.#id = event.lastEventId
		this.last = now()
		// Events are of one server: what is merged is read again.
		const merged = server() === "all" && TOPICS.includes(topic)
		if (!merged) this.#tell(topic, data)
		if (topic === "lag" || (merged && this.last > this.#staleAt + 3000)) {
			this.#staleAt = this.last
			this.#tell("stale")
		}
		if (topic === "bye") this.#lost()
	}

	#hello({at, ui, resumed}) {
		setClock(at)
		this.#tries = 0
		this.#become("live")
		if (this.#ui && !resumed) this.#tell("stale")
		if (this.#ui && this.#ui !== ui) this.#tell("upgraded")
		this.#ui ||= ui
	}

	#become(state) {
		if (this.state === state) return
		this.state = state
		this.#tell("state")
	}

	#tell(name, detail) {
		this.dispatchEvent(new CustomEvent(name, {detail}))
	}
}

export const live = new Live()
