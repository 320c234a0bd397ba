// Calls of the admin API, and the one event stream of the page.
import {now, setClock} from "./text.js"

// An error of the admin API, or no answer at all (status 0).
const apiError = (status, code, message = code) => Object.assign(new Error(message), {status, code})
const refusal = (status, {error, code}) => apiError(status, code, error?.message ?? `HTTP ${status}`)

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

let waiting = []

/** Reads from the admin API; reads of the same moment go as one request. @returns {Promise<any>} */
export const get = (name, params) => new Promise((resolve, reject) => {
	if (waiting.push({call: url(name, params), resolve, reject}) === 1) queueMicrotask(sendWaiting)
})

async function sendWaiting() {
	const calls = waiting
	waiting = []
	const batch = new URLSearchParams(calls.map(one => ["get", one.call]))
	try {
		const found = await (await send(`/admin/${calls[1] ? `batch?${batch}` : calls[0].call}`)).json()
		for (const [n, {status, body}] of (calls[1] ? found.answers : [{body: found}]).entries()) {
			if (status >= 400) calls[n].reject(refusal(status, body))
			else calls[n].resolve(body)
			if (body.missing) miss(body.missing)
		}
	} catch (error) {
		for (const one of calls) one.reject(error)
	}
}

// Writes by the admin API.
export async function post(name, body, options) {
	const answer = await send(url(`/admin/${name}`), {body, ...options})
	return answer.status === 204 ? null : answer.json()
}

/** Sends a request; a missing login is asked for and the request repeated. @param {string} path @param {any} [options] */
export async function send(path, {body, signal, anonymous} = {}) {
	for (let again = 0; ; again++) {
		const headers = {"content-type": "application/json", "x-routecodex-csrf": session.me?.csrf ?? ""}
		const write = body && {method: "POST", body: JSON.stringify(body), headers}
		const answer = await fetch(path, {...write, signal, cache: "no-store"}).catch(error => {
			throw signal?.aborted ? error : apiError(0, "unreachable")
		})
		if (answer.ok) return answer
		const error = refusal(answer.status, await answer.json().catch(() => ({})))
		if (error.status === 401 && !anonymous) await session.login(error.code)
		else if (error.code === "csrf" && !again) await readMe()
		else throw error
	}
}

const TOPICS = ["requests", "stats", "health", "sessions", "routing", "config"]
const WAITS = [500, 1000, 2000, 4000, 8000]
const HIDDEN_MS = 60_000
const MERGED_MS = 3000

// The event stream: it resumes where it broke off, and is closed while the tab is hidden.
// `last`: when data came, by the clock of the server; `missing`: servers without an answer.
export const live = Object.assign(new EventTarget(), {
	state: "offline",
	last: now(),
	paused: false,
	merged: () => server() === "all",
	missing: [],
	start() {
		wanted = true
		open()
	},
	restart() {
		lastId = ""
		miss([])
		close()
		open()
	},
	pause(paused) {
		live.paused = paused
		tell("state")
	},
})

let lastId = ""
let version = ""
let tries = 0
let wanted = false
let opening = false
let source = null
let timer = 0
let hiding = 0

const tell = (name, detail) => live.dispatchEvent(new CustomEvent(name, {detail}))

function miss(servers) {
	live.missing = servers
	tell("missing")
}

function become(state) {
	if (live.state === state) return
	live.state = state
	tell("state")
}

function close() {
	clearTimeout(timer)
	source?.close()
	source = null
}

// Opens the stream; a retry asks who is logged in: EventSource hides the status of a refusal.
async function open(check = false) {
	if (opening || source) return
	opening = true
	try {
		if (check) await readMe()
	} catch {
		return lost()
	} finally {
		opening = false
	}
	const mine = new EventSource(url("/admin/events", {topics: TOPICS.join(), last_event_id: lastId}))
	source = mine
	mine.onerror = () => source === mine && lost()
	for (const topic of [...TOPICS, "hello", "lag", "bye"]) mine.addEventListener(topic, event => source === mine && take(topic, event))
}

function lost() {
	close()
	if (!wanted) return
	become(navigator.onLine ? "reconnecting" : "offline")
	const wait = WAITS[Math.min(tries++, WAITS.length - 1)]
	if (!document.hidden) timer = setTimeout(() => open(true), wait * (0.75 + Math.random() / 2))
}

function retryNow() {
	if (!wanted || (source && live.state === "live")) return
	tries = 0
	close()
	open(true)
}

function take(topic, event) {
	const data = JSON.parse(event.data)
	if (topic === "hello") hello(data)
	if (event.lastEventId) lastId = event.lastEventId
	live.last = now()
	// A key of several servers is shown in its worst state, not in that of one.
	if (topic !== "health" || !live.merged()) tell(topic, data)
	if (topic === "lag") tell("stale")
	if (topic === "bye") lost()
}

function hello({at, ui, resumed}) {
	setClock(at)
	tries = 0
	become("live")
	if (version && !resumed) tell("stale")
	if (version && version !== ui) tell("upgraded")
	version ||= ui
}

document.addEventListener("visibilitychange", () => {
	clearTimeout(hiding)
	if (document.hidden) hiding = setTimeout(close, HIDDEN_MS)
	else retryNow()
})
addEventListener("online", retryNow)
addEventListener("offline", lost)
// Events are of one server: what several have is read again and again.
setInterval(() => live.merged() && live.state === "live" && !document.hidden && tell("stale", true), MERGED_MS)
