// The shell: language, theme, login, pages, keyboard, connection.
import {dim, fill, h, icon, phone, raw} from "./dom.js"
import {get, live, post, readMe, session, url} from "./net.js"
import {button, closeMenus, dialog, errorText, failure, field, select, stateSign, toast} from "./parts.js"
import {LANGUAGES, chosenLanguage, clock, lang, loadLanguage, num, t} from "./text.js"

const PAGES = ["overview", "requests", "sessions", "providers", "inspector", "routing", "playground", "keys", "config"]
const ON_PHONE = 4
const THEMES = ["system", "light", "dark"]
const KEYS = {"/": "w.search", j: "w.next", k: "w.prev", Enter: "w.open", Esc: "w.close", p: "req.pause", "?": "help.title"}
const dark = matchMedia("(prefers-color-scheme: dark)")
const address = name => (name === "overview" ? "/ui/" : `/ui/${name}`)
const named = () => PAGES.find(name => address(name) === location.pathname) ?? "overview"
/** @type {(test: string) => any} */
const find = test => document.querySelector(`[data-testid=${test}]`)
const inDialog = () => document.querySelector("dialog[open]")

/** The page that is open: its name, its view, and what to undo when it is left. @type {any} */
let current = null
const main = h("main", {id: "main", tabindex: -1})
const indicator = h("span.line.small.sub@live", {role: "status"})
const offer = h("div")
const gaps = h("div", {role: "status"})
const prefs = h("div.line.prefs")
const picker = h("div.line.server")

/** @type {Shell} */
const shell = {
	q: name => new URLSearchParams(location.search).get(name) ?? "",
	set(params, replace) {
		const query = new URLSearchParams(location.search)
		for (const name in params) {
			if (params[name]) query.set(name, params[name])
			else query.delete(name)
		}
		move(`${location.pathname}?${query}`.replace(/\?$/, ""), replace)
	},
	link: (name, params) => url(address(name), params),
	to: params => shell.link("requests", params),
	on(topic, act) {
		const hear = event => act(event.detail)
		live.addEventListener(topic, hear)
		current.off.push(() => live.removeEventListener(topic, hear))
	},
	every(ms, act) {
		const timer = setInterval(() => document.hidden || act(), ms)
		current.off.push(() => clearInterval(timer))
	},
}

function move(path, replace) {
	if (path === location.pathname + location.search) return
	history[replace ? "replaceState" : "pushState"](null, "", path)
	show()
}

// Shows the page of the address; an open one takes over the new parameters.
async function show() {
	const name = named()
	if (current?.name === name) return current.view.update?.()
	leave()
	const mine = {name, view: {}, off: []}
	current = mine
	for (const link of document.querySelectorAll("nav a")) {
		link.removeAttribute("aria-current")
		if (link.getAttribute("href") === address(name)) link.setAttribute("aria-current", "page")
	}
	document.title = `${t(`nav.${name}`)} · RouteCodex`
	const head = h("div.top.line.wraps", h("h1", t(`nav.${name}`)))
	const body = h("div.body.scroll")
	fill(main, head, body)
	try {
		const page = await import(`/ui/assets/pages/${name}.js`)
		if (current !== mine) return
		const view = page.open(shell)
		mine.view = view
		head.append(...[view.head ?? []].flat())
		body.replaceWith(view.body ?? h("div.body.scroll", h("div.page.stack", view.page)))
		if (!listed) listServers()
	} catch (error) {
		console.warn(error)
		fill(body, failure(error, reshow))
	}
}

function leave() {
	for (const off of current?.off ?? []) off()
	current?.view.close?.()
	current = null
	live.pause(false)
}

function reshow() {
	leave()
	show()
}

const link = name => h("li", h("a", {href: address(name)}, icon(name), h("span", t(`nav.${name}`))))

function frame() {
	const more = h("details.menu.more@more", {label: t("nav.more")}, h("summary", icon("more"), h("span", t("nav.more"))), h("div.sheet.float", h("ul", PAGES.slice(ON_PHONE).map(link)), h("div.slot")))
	fill(document.getElementById("app"), h("a.skip", {href: "#main"}, t("skip")),
		h("header.rail", h("div.brand.line", icon("logo"), raw("RouteCodex")), h("div.slot"), h("nav", h("ul", PAGES.map(link)), more), h("div.foot", indicator, h("div.slot"))),
		h("div.stage", offer, gaps, main), h("div", {id: "toasts", "aria-live": "polite"}))
	fill(prefs, choice("language", LANGUAGES, lang(), speak), choice("theme", THEMES, kept(), name => paint(localStorage.setItem("routecodex.theme", name))), button("?", {kind: "quiet", label: t("help.title"), onclick: help}))
	place()
	showPicker()
	showState()
}

const choice = (name, values, value, change) => select(name, values.map(one => [one, t(`${name}.${one}`)]), value, {label: t(`w.${name}`), onchange: event => change(event.target.value)})

// Puts server, language and theme where the width has room for them.
function place() {
	const [top, sheet, foot] = document.querySelectorAll(".slot")
	if (phone.matches) sheet.append(picker, prefs)
	else {
		top.append(picker)
		foot.append(prefs)
	}
}

const kept = () => THEMES.find(name => name === localStorage.getItem("routecodex.theme")) ?? "system"

function paint(_) {
	document.documentElement.dataset.theme = kept() !== "system" ? kept() : dark.matches ? "dark" : "light"
}

async function speak(name) {
	localStorage.setItem("routecodex.lang", name)
	await loadLanguage(name)
	frame()
	if (session.me) enter()
}

let listed = false

// Asks for the servers together with what the first page reads.
function listServers() {
	listed = true
	get("servers").then(found => showPicker(found.servers), () => {})
}

// Shows the server, and a choice when there are several.
function showPicker(/** @type {any[]} */ servers = [session.me?.server]) {
	const own = session.me?.server
	if (!own) return fill(picker)
	const chosen = shell.q("server") || own.id
	const one = servers.find(server => server.id === chosen)
	const onchange = event => {
		shell.set({server: event.target.value === own.id ? "" : event.target.value})
		live.restart()
		showState()
		reshow()
		showPicker(servers)
	}
	const options = servers.map(server => [server.id, server.id])
	if (options.length > 1) options.push(["all", t("server.all")])
	fill(picker, stateSign(one?.alive === false ? "out" : "ok"), select("server", options, chosen, {label: t("w.server"), onchange, title: own.url}))
}

function showState() {
	const state = live.state === "live" && live.paused ? "paused" : live.state
	indicator.dataset.state = state
	fill(indicator, h("i"), h("span", t(`live.${state === "live" && live.merged() ? "polling" : state}`, {time: clock(live.last)})))
	document.documentElement.toggleAttribute("data-stale", state === "reconnecting" || state === "offline")
}

// Says whose data is missing where that of several servers is merged.
function showMissing() {
	const names = live.missing.map(({server, message}) => h("b", {title: message}, " ", raw(server)))
	fill(gaps, names.length > 0 && h("p.offer.gap@missing", t("server.missing", {n: num(names.length)}), names))
}

const offerReload = () => fill(offer, h("p.line.offer", t("upgraded"), button(t("w.reload"), {kind: "primary", onclick: () => location.reload()})))

let asking = null

// Shows the login over the page; all calls that wait for it share one.
session.login = reason => (asking ??= askLogin(reason).finally(() => (asking = null)))

/** @type {(reason: string) => Promise<void>} */
const askLogin = reason => new Promise(resolve => {
	const error = h("p.bad@login-error", {role: "alert", hidden: true})
	const secret = h("input.in.mono@login-token", {type: "password", autocomplete: "current-password", required: true, autofocus: true})
	const complain = found => {
		error.hidden = !found
		fill(error, found && errorText(found))
	}
	const onsubmit = async event => {
		event.preventDefault()
		event.submitter.disabled = true
		complain()
		try {
			await logIn(secret.value.trim())
			node.close()
			resolve()
		} catch (found) {
			complain(found)
			secret.select()
		}
		event.submitter.disabled = false
	}
	const node = dialog(t("login.title"), h("form.stack", {onsubmit}, field(t("login.token"), secret), error, h("p.dim", t("login.where"), " ", h("code", "routecodex ui")), h("div.line.actions", h("button.btn.primary@login-submit", t("login.title")))), {oncancel: event => event.preventDefault()})
	if (reason === "invalid_code") complain({code: reason})
})

// Tries the text as the admin token and then as a client key.
async function logIn(secret) {
	const attempt = body => post("login", body, {anonymous: true})
	const key = {key: secret}
	await attempt(secret.startsWith("rcx-") ? key : {token: secret}).catch(error => {
		if (error.code !== "invalid_admin_token") throw error
		return attempt(key).catch(second => {
			throw second.code === "invalid_api_key" ? error : second
		})
	})
	await readMe({anonymous: true})
}

// Uses the one-time code of the address, which is removed from it at once.
async function useCode() {
	const code = /^#login=([\w-]+)$/.exec(location.hash)?.[1]
	if (!code) return
	history.replaceState(null, "", location.pathname + location.search)
	await post("login", {code}, {anonymous: true}).catch(error => (error.status === 401 ? session.login("invalid_code") : toast(errorText(error), "error")))
}

const logOut = () => post("logout", {}).finally(() => location.reload())

function help() {
	if (inDialog()) return
	const {name, role} = session.me ?? {}
	dialog(t("help.title"), [h("dl.keys", Object.entries(KEYS).map(([key, text]) => h("div", h("dt", h("kbd", key)), h("dd", t(text))))),
		h("form.line.actions", {method: "dialog"}, role && [dim(raw(`${name} (${role})`)), button(t("login.out"), {onclick: logOut, kind: "quiet"})], h("button.btn", {autofocus: true}, t("w.close")))], {"data-testid": "help"})
}

function onKey(event) {
	const typing = event.target.matches?.("input, textarea, select")
	if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || inDialog()) return
	if (event.key === "Escape") {
		if (closeMenus()) return
		if (typing) event.target.blur()
	} else if (typing) return
	if (event.key === "?") help()
	else if (event.key !== "/") current?.view.key?.(event.key, event)
	else if (find("search")) {
		event.preventDefault()
		find("search").focus()
	}
}

// Follows links of the console without loading it again.
function onClick(event) {
	const anchor = event.target.closest("a[href^='/ui/']")
	closeMenus(anchor ? null : event.target)
	if (!anchor || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return
	event.preventDefault()
	const to = new URL(anchor.getAttribute("href"), location.href)
	if (shell.q("server")) to.searchParams.set("server", shell.q("server"))
	move(to.pathname + to.search)
}

async function enter() {
	try {
		await readMe()
	} catch (error) {
		return fill(main, h("h1.sr", t(`nav.${named()}`)), failure(error, enter))
	}
	showPicker()
	listed = false
	reshow()
	live.start()
}

paint()
await loadLanguage(chosenLanguage())
frame()
document.addEventListener("keydown", onKey)
document.addEventListener("click", onClick)
addEventListener("popstate", show)
phone.addEventListener("change", place)
dark.addEventListener("change", paint)
live.addEventListener("state", showState)
live.addEventListener("upgraded", offerReload)
live.addEventListener("missing", showMissing)
live.addEventListener("stale", (/** @type {any} */ event) => current?.view.refresh?.(event.detail))
await useCode()
await enter()
