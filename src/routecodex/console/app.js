// The shell: language, theme, login, pages, keyboard, connection.
import {fill, h, icon} from "./dom.js"
import {call, live, readMe, session, url} from "./net.js"
import {button, closeMenus, dialog, errorText, failure, run, select, toast} from "./parts.js"
import {LANGUAGES, chosenLanguage, clock, lang, loadLanguage, now, span, t} from "./text.js"

const PAGES = ["overview", "requests", "sessions", "providers", "inspector", "routing", "playground", "keys", "config"]
const ON_PHONE = 4
const THEMES = ["system", "light", "dark"]
const KEYS = {"/": "search", j: "next", k: "prev", Enter: "open", Esc: "close", p: "pause", "?": "help"}
const phone = matchMedia("(max-width: 720px)")
const dark = matchMedia("(prefers-color-scheme: dark)")
const address = name => (name === "overview" ? "/ui/" : `/ui/${name}`)
const named = () => PAGES.find(name => address(name) === location.pathname) ?? "overview"
/** @type {(test: string) => any} */
const find = test => document.querySelector(`[data-testid=${test}]`)
const inDialog = () => document.querySelector("dialog[open]")

/** @type {any} */
let current = null
const main = h("main", {id: "main", tabindex: -1})
const indicator = h("span.live", {role: "status", test: "live"})
const lines = h("div.lines")
const prefs = h("div.prefs")
const picker = h("div.server")

/** What a page may use of the shell. @type {Shell} */
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
	go: (name, params) => move(shell.link(name, params)),
	link: (name, params) => url(address(name), params),
	on(topic, act) {
		const hear = event => act(event.detail)
		live.addEventListener(topic, hear)
		current.off.push(() => live.removeEventListener(topic, hear))
	},
	every(ms, act) {
		const timer = setInterval(() => document.hidden || act(), ms)
		current.off.push(() => clearInterval(timer))
	}
}

function move(path, replace) {
	if (path === location.pathname + location.search) return
	history[replace ? "replaceState" : "pushState"](null, "", path)
	show()
}

// Shows the page of the address; a page that is open already takes over the new parameters.
async function show() {
	const name = named()
	if (current?.name === name) return current.view.update?.()
	leave()
	const mine = {name, view: {}, off: []}
	current = mine
	for (const link of document.querySelectorAll("nav a")) link.toggleAttribute("aria-current", false)
	for (const link of document.querySelectorAll(`nav a[href="${address(name)}"]`)) link.setAttribute("aria-current", "page")
	find("more").classList.toggle("on", PAGES.indexOf(name) >= ON_PHONE)
	document.title = `${t(`nav.${name}`)} · ${t("brand")}`
	const head = h("div.top", h("h1", t(`nav.${name}`)))
	const body = h("div.body")
	fill(main, head, body)
	try {
		const [page] = await Promise.all([import(`/ui/assets/pages/${name}.js`), name === "overview" || stylesheet()])
		if (current !== mine) return
		mine.view = page.open(shell)
		head.append(...[mine.view.head ?? []].flat())
		body.replaceWith(mine.view.body)
	} catch (error) {
		console.warn(error)
		fill(body, failure(error, reshow))
	}
}

// Loads the style of the pages behind the first one, once.
/** @type {() => Promise<void>} */
const stylesheet = () => new Promise(resolve => {
	if (document.getElementById("pages")) return resolve()
	document.head.append(h("link", {rel: "stylesheet", id: "pages", href: "/ui/assets/pages.css", onload: resolve, onerror: resolve}))
})

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

// Builds the frame around the page.
function frame() {
	const more = h("details.menu.more", {test: "more", label: t("nav.more")}, h("summary", icon("more"), h("span", t("nav.more"))), h("div.sheet", h("ul", PAGES.slice(ON_PHONE).map(link)), h("div.slot")))
	const skip = event => {
		event.preventDefault()
		main.focus()
	}
	fill(document.getElementById("app"), h("a.skip", {href: "#main", onclick: skip}, t("skip")),
		h("header.rail", h("div.brand", icon("logo"), t("brand")), picker, h("nav", {label: t("nav.pages")}, h("ul", PAGES.map(link)), more), h("div.foot", indicator, h("div.slot"))),
		h("div.stage", lines, main), h("div", {id: "toasts", "aria-live": "polite"}))
	const theme = event => {
		localStorage.setItem("routecodex.theme", event.target.value)
		paint()
	}
	fill(prefs, select("language", LANGUAGES.map(name => [name, t(`lang.${name}`)]), lang(), {label: t("pref.language"), onchange: event => speak(event.target.value)}),
		select("theme", THEMES.map(name => [name, t(`theme.${name}`)]), kept(), {label: t("pref.theme"), onchange: theme}), button("?", {kind: "quiet", label: t("help.title"), onclick: help}))
	place()
	showPicker([])
	showState()
}

// Puts language and theme where the width has room for them.
const place = () => document.querySelector(phone.matches ? ".sheet .slot" : ".foot .slot")?.append(prefs)

const kept = () => THEMES.find(name => name === localStorage.getItem("routecodex.theme")) ?? "system"

function paint() {
	document.documentElement.dataset.theme = kept() === "system" ? (dark.matches ? "dark" : "light") : kept()
}

async function speak(name) {
	localStorage.setItem("routecodex.lang", name)
	await loadLanguage(name)
	frame()
	if (session.me) reshow()
}

// Shows the server, and a choice when there are several.
function showPicker(servers) {
	const about = session.me?.server
	if (!about) return fill(picker)
	const chosen = shell.q("server") || about.id
	const one = servers.find(server => server.id === chosen) ?? about
	const onchange = event => {
		shell.set({server: event.target.value === about.id ? "" : event.target.value})
		live.restart()
		reshow()
	}
	const options = servers.length > 1 ? [...servers.map(server => [server.id, server.id]), ["all", t("server.all")]] : [[about.id, about.id]]
	fill(picker, h("i.dot", {class: one.alive === false ? "cbad" : "cok"}), h("span.clip", chosen === "all" ? t("server.all") : one.id, h("small", one.url.replace(/^https?:\/\//, ""))), servers.length > 1 && icon("down"),
		select("server", options, chosen, {label: t("server.label"), onchange, title: t("server.meta", {version: about.version, workers: about.workers, up: span(now() - Date.parse(about.started_at))})}))
}

function showState() {
	indicator.dataset.state = live.shown
	fill(indicator, h("i"), h("span", t(`live.${live.shown}`, {time: clock(live.last)})))
	document.documentElement.toggleAttribute("data-stale", ["reconnecting", "offline"].includes(live.shown))
}

const offerReload = () => fill(lines, h("p.line", t("up.text"), button(t("up.do"), {kind: "primary", onclick: () => location.reload()})))

let asking = null

// Shows the login over the page; all calls that wait for it share one.
session.login = reason => (asking ??= askLogin(reason).finally(() => (asking = null)))

/** @type {(reason: string) => Promise<void>} */
const askLogin = reason => new Promise(resolve => {
	const error = h("p.bad", {test: "login-error", role: "alert", hidden: true})
	const secret = h("input.in.mono", {type: "password", test: "login-token", autocomplete: "current-password", required: true, autofocus: true})
	const submit = h("button.btn.primary", {test: "login-submit"}, t("login.do"))
	const complain = found => {
		error.hidden = !found
		fill(error, found && errorText(found))
	}
	const onsubmit = async event => {
		event.preventDefault()
		submit.disabled = true
		complain()
		try {
			await logIn(secret.value.trim())
			node.close()
			resolve()
		} catch (found) {
			complain(found)
			secret.select()
		}
		submit.disabled = false
	}
	const node = dialog(t("login.title"), h("form", {onsubmit}, h("label.field", h("span", t("login.token")), secret), error, h("p.dim", t("login.where"), " ", h("code", "routecodex ui")), h("div.actions", submit)), {class: "small", oncancel: event => event.preventDefault()})
	if (reason === "invalid_code") complain({code: reason})
})

// Tries the text as the admin token and then as a client key.
async function logIn(secret) {
	const post = body => call("/admin/login", {body, anonymous: true})
	try {
		await post(secret.startsWith("rcx-") ? {key: secret} : {token: secret})
	} catch (error) {
		if (error.code !== "invalid_admin_token") throw error
		await post({key: secret}).catch(second => {
			throw second.code === "invalid_api_key" ? error : second
		})
	}
	session.me = await call("/admin/me", {anonymous: true})
}

// Uses the one-time code of the address, which is removed from it at once.
async function useCode() {
	const code = /^#login=([\w-]+)$/.exec(location.hash)?.[1]
	if (!code) return
	history.replaceState(null, "", location.pathname + location.search)
	await call("/admin/login", {body: {code}, anonymous: true}).catch(error => (error.status === 401 ? session.login("invalid_code") : toast(errorText(error), "error")))
}

const logOut = () => run(null, async () => {
	await call("/admin/logout", {body: {}})
	location.reload()
})

function help() {
	if (inDialog()) return
	const me = session.me
	dialog(t("help.title"), [h("dl.keys", Object.entries(KEYS).map(([key, name]) => h("div", h("dt", h("kbd", key)), h("dd", t(`help.${name}`))))), me && h("p.dim", t("help.who", {name: me.name, role: t(`role.${me.role}`)})), h("form.actions", {method: "dialog"}, button(t("login.out"), {onclick: logOut, kind: "quiet"}), h("button.btn", {autofocus: true}, t("do.close")))], {test: "help", class: "small"})
}

function onKey(event) {
	const typing = event.target.matches?.("input, textarea, select")
	if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || inDialog()) return
	if (event.key === "Escape") {
		if (closeMenus()) return
		if (typing) event.target.blur()
	} else if (typing) return
	const field = find("search")
	if (event.key === "?") help()
	else if (event.key !== "/") current?.view.key?.(event.key, event)
	else if (field) {
		event.preventDefault()
		field.focus()
	}
}

// Follows links of the console without loading it again.
function onClick(event) {
	const anchor = event.target.closest("a[href^='/ui/']")
	closeMenus(anchor ? null : event.target)
	if (!anchor || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return
	event.preventDefault()
	const to = new URL(anchor.href.baseVal ?? anchor.href, location.href)
	if (shell.q("server")) to.searchParams.set("server", shell.q("server"))
	move(to.pathname + to.search)
}

// Reads who we are, then opens page and stream.
async function enter() {
	try {
		await readMe()
	} catch (error) {
		return fill(main, h("h1.sr", t(`nav.${named()}`)), failure(error, enter))
	}
	showPicker([])
	await show()
	live.start()
	call("/admin/servers").then(found => showPicker(found.servers), () => {})
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
live.addEventListener("stale", () => current?.view.refresh?.())
await useCode()
await enter()
