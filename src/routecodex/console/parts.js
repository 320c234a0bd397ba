// Parts that all pages are made of: buttons, tags, menus, dialogs, messages.
import {fill, h, icon, mark, raw, s} from "./dom.js"
import {may} from "./net.js"
import {NONE, countdown, has, now, t} from "./text.js"

/** A button: `icon`, `kind` (primary, quiet, danger), and the `role` it needs. @param {any} text @param {any} [props] */
export function button(text, {icon: sign, kind, role, disabled, ...props} = {}) {
	const refused = role && !may(role)
	return h("button.btn", {type: "button", class: kind, disabled: disabled || refused, title: refused ? t("err.role") : null, ...props}, sign && icon(sign), text)
}

// A button with an icon alone.
export const iconButton = (sign, name, props) => button(icon(sign), {kind: "quiet", label: name, title: name, ...props})

/** A button that writes: disabled at once, then a toast. @param {any} text @param {any} props `name`: what it acts on @param {(event: any) => Promise<any>} work */
export function act(text, {name, ...props}, work) {
	const label = name ? `${text} ${name}` : text
	return button(text, {label: name && label, role: "operator", ...props, onclick: event => run(event.currentTarget, () => work(event), t("done", {what: label}))})
}

// Runs a write of a control and tells its outcome.
export async function run(control, work, done) {
	if (control) control.disabled = true
	try {
		const result = await work()
		if (done) toast(done)
		return result ?? true
	} catch (error) {
		if (error.name !== "AbortError" && error.message) toast(errorText(error), "error")
	} finally {
		if (control) control.disabled = false
	}
}

// The text for an error: ours when the code is known, else as the gateway wrote it.
export const errorText = error => (has(`err.${error.code}`) ? t(`err.${error.code}`) : raw(error.message))

let toastTimer = 0

// Shows a message for some seconds.
export function toast(text, kind = "ok") {
	const host = document.getElementById("toasts")
	clearTimeout(toastTimer)
	fill(host, h("div.toast", {test: "toast", role: "status", "data-kind": kind}, h("i.dot", {class: kind === "ok" ? "cok" : "cbad"}), h("span", text), iconButton("close", t("do.close"), {onclick: () => fill(host)})))
	toastTimer = setTimeout(() => fill(host), kind === "ok" ? 5000 : 12000)
}

// A modal dialog that is removed when it closes.
export function dialog(title, content, props) {
	const node = h("dialog", {label: title, ...props}, h("h2", title), content)
	node.addEventListener("close", () => node.remove())
	document.body.append(node)
	node.showModal()
	return node
}

/** Asks before something that cannot be undone. @returns {Promise<boolean>} */
export const confirm = (question, yes) => new Promise(resolve => {
	const node = dialog(question, h("form.actions", {method: "dialog"}, h("button.btn", {value: "no", autofocus: true}, t("do.cancel")), h("button.btn.danger", {value: "yes", test: "confirm-yes"}, yes)), {test: "confirm", class: "small"})
	node.addEventListener("close", () => resolve(node.returnValue === "yes"))
})

export const tag = (text, kind) => h("span.tag", {class: kind}, h("span.clip", text))
export const code = status => tag(status, status >= 500 ? "bad" : status >= 400 ? "warn" : "ok")
export const statusTag = row => (row.status == null ? h("span.tag.acc.now", h("i.dot"), t("req.streaming")) : code(row.status))

const STATES = {ok: "cok", out: "cbad", open: "cbad", half_open: "cwarn", limited: "cwarn"}

// A dot, or a ring that shows how much of a minute of cooldown is left.
export function stateSign(state, until) {
	if (state !== "cooling") return h("i.dot", {class: STATES[state] ?? "c7"})
	const left = until ? Math.min(1, Math.max(0.04, (Date.parse(until) - now()) / 6e4)) : 1
	return s("svg.ring.cwarn", {viewBox: "0 0 16 16", "aria-hidden": "true"}, s("circle.base", {cx: 8, cy: 8, r: 6}), s("circle", {cx: 8, cy: 8, r: 6, "stroke-dasharray": `${left * 37.7} 40`, transform: "rotate(-90 8 8)"}))
}

// Sign and word for the state of a key.
export const keyState = key => h("span.state", {title: key.reason || key.error}, stateSign(key.state, key.until), t(`st.${key.state}`), key.state === "cooling" && key.until && ` ${countdown(key.until)}`)

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

// The square of a provider, by its name or that of a key or target.
export const square = name => h("i.sq", {class: colour(name.split(".")[0])})

// A target with its square; a dash without one.
export const target = name => (name ? [square(name), raw(name, "clip")] : NONE)

export const legend = rows => h("div.legend", rows.map(row => h("span", h("i.sq", {class: row.cls}), row.name)))
export const bar = (share, cls = "c7") => h("span.bar", {class: cls}, h("i", {style: {width: `${Math.max(0, Math.min(1, share)) * 100}%`}}))

// A search field; `change` is called after a pause.
export function search(label, value, change) {
	let timer = 0
	const oninput = event => {
		clearTimeout(timer)
		timer = setTimeout(() => change(event.target.value.trim()), 250)
	}
	return h("div.search", {role: "search"}, icon("inspector"), h("input", {type: "search", test: "search", label, placeholder: label, value, oninput, spellcheck: "false", autocomplete: "off"}), h("kbd", {"aria-hidden": "true"}, "/"))
}

/** A menu below a button; its content is made when it opens. @param {any} text @param {() => any} content @param {any} [props] */
export function menu(text, content, {cls = "chip", ...props} = {}) {
	const body = h("div.pop")
	const node = h("details.menu", {...props, ontoggle: () => node.open && fill(body, content())}, h("summary", {class: cls, label: props.title}, text), body)
	return node
}

// Closes menus that a click or Esc left.
export function closeMenus(inside) {
	const open = [...document.querySelectorAll("details.menu[open]")].filter(node => !inside || !node.contains(inside))
	for (const node of open) node.removeAttribute("open")
	return open.length > 0
}

// A filter: choose one of the values seen or type one; set, it shows its value and a click removes it.
export function filter(name, value, values, change) {
	const label = t(`f.${name}`)
	if (value) return h("button.chip.on", {type: "button", "data-filter": name, title: t("f.remove", {name: label}), onclick: () => change("")}, h("span.clip", `${label}: `, raw(value)), icon("close"))
	const field = () => h("input.in", {label, placeholder: t("f.type"), onkeydown: event => event.key === "Enter" && change(event.target.value.trim())})
	return menu(label, () => [field(), values().slice(0, 12).map(one => h("button.item", {type: "button", onclick: () => change(one)}, raw(one, "clip")))], {"data-filter": name})
}

export const empty = (text, command) => h("div.empty", {test: "empty"}, h("p", text), command && h("code", command))

// An error in place, with a retry.
export const failure = (error, retry) => h("div.empty.bad", {role: "alert"}, h("p", errorText(error)), retry && button(t("do.retry"), {onclick: retry}))

// Loads data into an element: skeleton past 300 ms, errors in place; the last call wins.
export async function load(node, read, show) {
	const turn = (node.turn ?? 0) + 1
	node.turn = turn
	if (!node.childElementCount) fill(node, h("div.skeleton", {"aria-hidden": "true"}, h("i"), h("i"), h("i")))
	try {
		const data = await read()
		if (node.turn === turn) fill(node, show(data))
	} catch (error) {
		if (node.turn === turn) fill(node, failure(error, () => load(node, read, show)))
	}
}

export const block = (title, side, ...body) => h("section.block", h("header", h("h2", title), side && h("div.side", side)), body)

// A cell or a row of cells; `[content, classes, properties]` or the content alone.
const cell = (tag, one, more) => {
	const [content, cls, props] = one?.cell ? one : [one]
	return h(tag, {class: cls, ...more, ...props}, content)
}
export const as = (cls, content, props) => Object.assign([content, cls, props], {cell: true})
export const tr = (props, ...cells) => h("tr", props, cells.map(one => cell("td", one)))
export const table = (label, heads, rows) => h("div.wide", {tabindex: 0, role: "region", label}, h("table", {label}, heads && h("thead", h("tr", heads.map(one => cell("th", one, {scope: "col"})))), h("tbody", rows)))

export const field = (label, control, note) => h("label.field", h("span", label, note && h("small", note)), control)
export const select = (test, options, value, props) => h("select.in", {test, ...props}, options.map(([one, text]) => h("option", {value: one, selected: one === value}, text)))

// The steps of a plan: what was decided, what was left out and why.
export function planSteps(plan) {
	const step = (sign, cls, title, text) => h("li", {class: cls, test: "plan-step"}, mark(sign), h("div", h("b", title), text && h("p", raw(text))))
	const first = plan.class ?? plan
	return h("ol.steps", step("check", "c1", raw(first.route), first.reason), plan.route !== first.route && step("check", "c1", raw(plan.route), plan.reason),
		plan.removed?.map(row => step("cross", "cbad", [raw(row.target), " ", t("plan.removed")], row.reason)),
		plan.cooling?.map(row => step("skip", "c7", [raw(row.target), " ", t("plan.cooling", {s: Math.ceil(row.seconds)})], row.reason)),
		plan.steps?.map((row, n) => step(n ? "skip" : "check", n ? "c7" : "cok", [raw(row.target), n > 0 && ` ${t("plan.fallback", {n})}`], row.reason)),
		!plan.steps?.length && step("cross", "cbad", t("plan.none"), plan.reason))
}

export const notices = texts => (texts?.length ? texts.map(text => h("p.note", raw(text))) : h("p.dim", NONE))

export async function copy(text) {
	await navigator.clipboard.writeText(text)
	toast(t("done.copied"))
}
