// Parts that all pages are made of: buttons, tags, menus, dialogs, messages, tables.
import {CODE, dim, fill, h, icon, mark, raw, s} from "./dom.js"
import {may} from "./net.js"
import {NONE, clock, countdown, known, money, now, num, percent, relative, seconds, t, time} from "./text.js"

export const HOURS = {"1h": 1, "6h": 6, "24h": 24, "7d": 168, "30d": 720}

/** A button with an `icon`, of a `kind` (primary, quiet, danger); left out for logins below its `role`. @param {any} text @param {any} [props] */
export const button = (text, {icon: sign, kind, role, test = "", ...props} = {}) => (!role || may(role)) && h(`button.btn@${test}`, {type: "button", class: kind, ...props}, sign && icon(sign), text)

export const iconButton = (sign, name, props) => button(icon(sign), {kind: "quiet", label: name, title: name, ...props})

/** A button that writes: disabled at once, then a toast; `name` is what it acts on. @param {any} text @param {any} props @param {any} work */
export function act(text, {name = "", ...props}, work) {
	const label = `${text} ${name}`.trim()
	return button(text, {label, role: "operator", ...props, onclick: event => run(event.currentTarget, work, label)})
}

// Runs a write of a control and tells its outcome: true when done, false when not wanted.
export async function run(control, work, what) {
	control.disabled = true
	try {
		if ((await work()) === false) return false
		toast(t("done", {what}))
		return true
	} catch (error) {
		if (error.name !== "AbortError") toast(errorText(error), "error")
		return false
	} finally {
		control.disabled = false
	}
}

// The text for an error: ours when the code is known, else as the gateway wrote it.
export const errorText = ({code, message}) => (known("err", code) === code ? raw(message) : t(`err.${code}`))

let toastTimer = 0

export function toast(text, kind = "ok") {
	const host = document.getElementById("toasts")
	const close = () => fill(host)
	clearTimeout(toastTimer)
	toastTimer = setTimeout(close, kind === "ok" ? 5000 : 12000)
	fill(host, h("div.line.float@toast", {role: "status", "data-kind": kind}, stateSign(kind), h("span", text), iconButton("close", t("w.close"), {onclick: close})))
}

// A modal dialog that is removed when it closes.
export function dialog(title, content, props) {
	const node = h("dialog.float", {label: title, onclose: () => node.remove(), ...props}, h("h2", title), content)
	document.body.append(node)
	node.showModal()
	return node
}

/** Asks before something that cannot be undone. @returns {Promise<boolean>} */
export const confirm = (question, yes) => new Promise(resolve => {
	const node = dialog(question, h("form.line.actions", {method: "dialog"}, h("button.btn", {autofocus: true}, t("w.cancel")), h("button.btn.danger@confirm-yes", {value: "yes"}, yes)), {"data-testid": "confirm"})
	node.addEventListener("close", () => resolve(node.returnValue === "yes"))
})

export const tag = (text, kind) => h("span.tag.clip", {class: kind}, text)
export const tags = names => names.map(name => [tag(raw(name)), " "])
export const code = status => tag(status, status >= 500 ? "bad" : status >= 400 ? "warn" : "ok")
export const statusTag = row => (row.status == null ? tag([h("i.dot"), t("req.streaming")], "acc now") : code(row.status))

const SIGNS = {ok: "cok", out: "cbad", open: "cbad", error: "cbad", half_open: "cwarn", limited: "cwarn"}

// A dot, or a ring that shows how much of a minute of cooldown is left.
export function stateSign(state, until) {
	if (state !== "cooling") return h("i.dot", {class: SIGNS[state] ?? "c7"})
	const left = until ? Math.min(1, Math.max(0.04, (Date.parse(until) - now()) / 6e4)) : 1
	const circle = {cx: 8, cy: 8, r: 6}
	return s("svg.ring.cwarn", {viewBox: "0 0 16 16", "aria-hidden": "true"}, s("circle.base", circle), s("circle", {...circle, "stroke-dasharray": `${left * 37.7} 40`, transform: "rotate(-90 8 8)"}))
}

export const keyState = ({state, until}) => h("span.state", stateSign(state, until), t(`st.${state}`), state === "cooling" && until && ` ${countdown(until)}`)

export function updateKeys(providers, keys) {
	for (const key of keys) for (const one of providers) one.keys = one.keys.map(old => (old.name === key.name ? {...old, ...key} : old))
}

const colours = new Map()

// The colour class of a provider: the same everywhere, chosen by its name.
export function colour(name) {
	if (!colours.has(name)) {
		let at = [...name].reduce((sum, sign) => (sum * 31 + sign.charCodeAt(0)) % 997, 7)
		for (let n = 0; n < 6 && [...colours.values()].includes(`c${(at % 6) + 1}`); n++) at++
		colours.set(name, `c${(at % 6) + 1}`)
	}
	return colours.get(name)
}

export const square = name => h("i.sq", {class: colour(name.split(".")[0])})

export const target = name => (name ? [square(name), raw(name, "clip")] : NONE)

// What a colour stands for; with an address, a name of the gateway's.
export const legendEntry = ({name, cls, href}) => h(href ? "a" : "span", {href}, h("i.sq", {class: cls}), href ? raw(name) : name)
export const legend = rows => h("div.line.wraps.small", rows.map(legendEntry))
export const bar = (share, cls = "c7") => h("span.bar", {class: cls}, h("i", {style: {width: `${Math.max(0, Math.min(1, share)) * 100}%`}}))

// A search field for the parameter `q`, which it sets after a pause.
export function search(shell, label) {
	let timer = 0
	const oninput = event => {
		clearTimeout(timer)
		timer = setTimeout(() => shell.set({q: event.target.value.trim()}, true), 250)
	}
	return h("div.search", {role: "search"}, icon("inspector"), h("input.in@search", {type: "search", label, placeholder: label, value: shell.q("q"), oninput}))
}

/** A menu below a button; its content is made when it opens. @param {any} text @param {any} content @param {any} [props] */
export function menu(text, content, {cls = "chip", label, ...props} = {}) {
	const body = h("div.pop.float")
	const node = h("details.menu", {...props, ontoggle: () => node.open && fill(body, content())}, h("summary", {class: cls, label, title: label}, text), body)
	return node
}

export function closeMenus(inside) {
	const open = [...document.querySelectorAll("details.menu[open]")].filter(node => !inside || !node.contains(inside))
	for (const node of open) node.removeAttribute("open")
	return open.length > 0
}

export const chip = (name, value, onclick) => h("button.chip.on", {type: "button", title: t("f.remove", {name}), onclick}, h("span.clip", `${name}: `, value), icon("close"))

// A filter by a parameter: choose one of the values seen or type one.
export function filter(shell, name, values) {
	const change = value => shell.set({[name]: value, id: ""})
	const label = t(`w.${name}`)
	if (shell.q(name)) return chip(label, raw(shell.q(name)), () => change(""))
	const typed = h("input.in", {label, placeholder: t("f.type"), onkeydown: event => event.key === "Enter" && change(event.target.value.trim())})
	return menu(label, () => [typed, values().map(one => h("button.item", {type: "button", onclick: () => change(one)}, raw(one, "clip")))])
}

export const empty = (text, command) => h("div.empty@empty", h("p", text), command && h("code", command))

export const failure = (error, retry) => h("div.empty.bad", {role: "alert"}, h("p", errorText(error)), error.status !== 404 && button(t("w.retry"), {onclick: retry}))

// Loads data into an element: skeleton past 300 ms, errors in place; last call wins.
export async function load(node, read, show) {
	const turn = (node.turn ?? 0) + 1
	node.turn = turn
	if (!node.childElementCount) fill(node, h("div.skeleton"))
	const shown = await read().then(show, error => failure(error, () => load(node, read, show)))
	if (node.turn === turn) fill(node, shown)
}

export const block = (title, side, ...body) => h("section.block", h("header.line.wraps", h("h2", title), side && h("div.line.end.dim.small", side)), body)
export const none = () => h("p.inner.dim", NONE)
export const pre = (text, test = "") => h(`pre.box@${test}`, CODE, text)

/** A table; a column is `[text of its head, cell of a row, classes]`, `props` are those of a row. @param {any} [props] */
export function table(label, columns, rows, props = () => ({})) {
	const head = h("thead", h("tr", columns.map(([text, , cls]) => h("th", {class: cls, scope: "col"}, text))))
	const line = row => h("tr", props(row), columns.map(([, cell, cls]) => h("td", {class: cls}, cell(row))))
	return h("div.wide", {tabindex: 0, role: "region", label}, h("table", {label}, columns[0][0] && head, h("tbody", rows.map(line))))
}

function quota({kind, limit, remaining, resets_at: at}) {
	const share = remaining / limit
	return h("div", {title: at && t("keys.resets", {left: num(remaining), limit: num(limit), at: relative(at)})}, bar(share, share < 0.1 ? "cbad" : "c7"), percent(share), " ", dim(raw(kind)))
}

export const keyTable = (shell, keys, state = keyState, more = []) => table(t("keys.title"), [
	[t("w.key"), key => [square(key.name), h("a.mono", {href: shell.to({provider: key.name.split(".")[0]})}, raw(key.name))]],
	[t("w.status"), state],
	[t("w.requests"), key => num(key.requests), "num hide-s"],
	[t("w.errors"), key => percent(key.requests ? key.errors / key.requests : null), "num hide-s"],
	[t("w.first"), key => seconds(key.first_byte_p50), "num hide-s"],
	[t("keys.quota"), key => (key.quota?.length ? key.quota.map(quota) : dim(t("keys.no_quota"))), "hide-s"],
	[t("w.cost"), key => money(key.cost), "num hide-s"],
	...more,
], keys, key => ({"data-testid": "key-row", "data-key": key.name, "data-state": key.state}))

export const requestTable = (rows, link) => table(t("nav.requests"), [
	["", row => h("a", {href: link(row)}, time(row.time, clock(row.time))), "mono"],
	["", statusTag],
	["", row => [raw(row.client), " ", dim(raw(row.agent))], "clip hide-s"],
	["", row => raw(row.model), "clip"],
	["", row => target(row.target), "clip hide-s"],
	["", row => seconds(row.seconds), "num hide-s"],
	["", row => money(row.cost), "num"],
], rows.toReversed())

export const field = (label, control) => h("label.field", h("span", label), control)
export const select = (test, options, value, props = {}) => h(`select.in@${test}`, props, options.map(([one, text]) => h("option", {value: one, selected: one === value}, text)))

// The steps of a plan: what was decided, what was left out and why.
export function planSteps(plan) {
	const step = (sign, cls, title, text, more) => h("li@plan-step", {class: cls}, mark(sign), h("div", h("b", raw(title), more && [" ", more]), h("p", raw(text))))
	const first = plan.class ?? plan
	return [h("ol.steps", step("check", "c1", first.route, first.reason),
		plan.route !== first.route && step("check", "c1", plan.route, plan.reason),
		plan.removed?.map(row => step("cross", "cbad", row.target, row.reason, t("plan.removed"))),
		plan.cooling?.map(row => step("skip", "c7", row.target, row.reason, [t("st.cooling"), " ", seconds(row.seconds)])),
		plan.steps?.map((row, n) => step(n ? "skip" : "check", n ? "c7" : "cok", row.target, row.reason, n > 0 && t("plan.fallback", {n}))),
		!plan.steps?.length && step("cross", "cbad", "", plan.reason, t("plan.none"))), notices(plan.notices)]
}

export const notices = texts => texts?.map(text => h("p.note", raw(text)))

export const copy = text => navigator.clipboard.writeText(text).then(() => toast(t("done", {what: t("w.copy")})))
