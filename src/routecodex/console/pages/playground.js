// The playground: a chat in any of the four protocols, with plan, cost and raw wire beside the answer.
import {fill, h, raw} from "../dom.js"
import {call, may, send, url} from "../net.js"
import {block, button, errorText, field, iconButton, notices, planSteps, select, tag, target, toast} from "../parts.js"
import {count, money, seconds, t} from "../text.js"
import {WIRES, readEvents} from "../wire.js"

const MOST_WIRE = 200_000
const FIXED = ["status", "help", "clear", "stopMessage:clear", "clock:clear", "agents:clear", 'stopMessage:""']

/** @param {Shell} shell @returns {View} */
export function open(shell) {
	let messages = []
	let images = []
	let stop = null
	const talk = h("div.chat")
	const answer = h("div.said", {test: "play-answer", "data-state": "idle", "aria-live": "polite", hidden: true})
	const wire = h("pre.box", {test: "play-wire", tabindex: 0, lang: "en", translate: "no"})
	const plan = h("div.inner", {test: "play-plan"}, h("p.dim", t("play.plan_hint")))
	const outcome = h("div.line.sub")
	const protocol = select("play-protocol", Object.keys(WIRES).map(name => [name, t(`api.${name}`)]), shell.q("protocol") || "messages", {onchange: () => shell.set({protocol: protocol.value}, true)})
	const model = h("input.in.mono", {test: "play-model", list: "models", value: shell.q("model")})
	const sessionId = h("input.in.mono", {test: "play-session", value: shell.q("session")})
	const models = h("datalist", {id: "models"})
	const tools = h("textarea.in.mono", {label: t("play.tools"), rows: 5, spellcheck: "false", placeholder: "[]"})
	const pictures = h("div.line")
	const file = h("input.sr", {type: "file", accept: "image/*", multiple: true, tabindex: -1, label: t("play.image"), onchange: attach})
	const sender = button(h("span", t("play.send")), {kind: "primary", test: "play-send", role: "operator", onclick: () => (stop ? stop.abort() : say())})
	const text = h("textarea.in", {test: "play-text", rows: 3, label: t("play.text"), placeholder: t("play.hint"), onkeydown: onKey})
	const offers = completion(text)

	call(url("/admin/providers")).then(({providers}) => {
		const full = providers.flatMap(one => one.models.map(name => `${one.name}.${name}`))
		const short = providers.flatMap(one => [one.name, ...one.keys.map(key => key.name)])
		fill(models, full.map(value => h("option", {value})))
		model.value ||= full[0] ?? ""
		offers.names = [...FIXED, ...full.flatMap(name => [`!${name}`, name]), ...short.flatMap(name => [`!${name}`, `#${name}`, `@${name}`])]
	}, () => {})

	async function attach() {
		for (const one of file.files) {
			const bytes = new Uint8Array(await one.arrayBuffer())
			images.push({type: one.type, data: btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join("")), name: one.name})
		}
		file.value = ""
		showImages()
	}

	const showImages = () => fill(pictures, images.map(one => h("span.tag.acc", raw(one.name), iconButton("close", t("do.cancel"), {onclick: () => {
		images = images.filter(other => other !== one)
		showImages()
	}}))))

	function onKey(event) {
		if (offers.key(event) || event.key !== "Enter" || event.shiftKey || event.isComposing) return
		event.preventDefault()
		if (!stop && may("operator")) say()
	}

	const bubble = one => h("div.said", {class: one.role, dir: "auto"}, one.text, one.images?.length > 0 && h("span.dim", ` ${t("play.images_n", {n: one.images.length})}`))

	async function say() {
		const said = text.value.trim()
		if (!said && !images.length) return
		let extra
		try {
			extra = tools.value.trim() && JSON.parse(tools.value)
		} catch (error) {
			return toast(t("play.bad_tools", {why: error}), "error")
		}
		messages.push({role: "user", text: said, images})
		images = []
		showImages()
		text.value = ""
		fill(talk, messages.map(bubble))
		const kind = WIRES[protocol.value]
		const name = model.value.trim()
		const body = kind.body(name, messages, extra)
		await stream(kind, {protocol: protocol.value, path: kind.path(name), body, ...(sessionId.value && {session: sessionId.value.trim()})})
	}

	async function stream(kind, asked) {
		stop = new AbortController()
		sender.lastChild.textContent = t("play.stop")
		answer.hidden = false
		answer.className = "said"
		answer.dataset.state = "streaming"
		const spoken = h("span", {dir: "auto"})
		const called = h("code.tool")
		fill(answer, spoken, called)
		fill(outcome)
		fill(wire, `POST ${asked.path}\n\n${JSON.stringify(asked.body, null, 2)}\n\n`)
		explain(asked)
		const started = performance.now()
		let first = 0
		try {
			const reply = await send("/admin/playground", {body: asked, signal: stop.signal})
			await readEvents(reply.body, (frame, data) => {
				first ||= performance.now() - started
				if (wire.textContent.length < MOST_WIRE) wire.append(`${frame}\n\n`)
				const piece = data ? kind.read(data) : {}
				spoken.append(piece.text ?? "")
				called.append(piece.tool ?? "")
				if (piece.error) throw new Error(piece.error)
			})
			finished(reply.headers.get("x-request-id"), first / 1000)
		} catch (error) {
			if (error.name !== "AbortError") return failed(error)
		} finally {
			stop = null
			sender.lastChild.textContent = t("play.send")
		}
		messages.push({role: "assistant", text: spoken.textContent})
		answer.dataset.state = "done"
	}

	function failed(error) {
		answer.dataset.state = "error"
		answer.classList.add("error")
		answer.append(h("p", errorText(error)))
		messages.pop()
	}

	async function explain({session, ...asked}) {
		const found = await call("/admin/explain", {body: {...asked, headers: session ? {"x-session-id": session} : {}}}).catch(error => error)
		fill(plan, found instanceof Error ? h("p.bad", errorText(found)) : [planSteps(found), found.notices?.length > 0 && notices(found.notices)])
	}

	// Shows what the answer took and cost.
	async function finished(id, first) {
		const found = id && (await call(url(`/admin/requests/${id}`)).catch(() => null))
		const row = found?.request
		fill(outcome, row && h("b", target(row.target)), h("span", t("col.first"), " ", seconds(first)), row && [h("span", `${t("kpi.tokens")} ${count(row.input_tokens)} / ${count(row.output_tokens)}`), tag(money(row.cost)), h("a.link.mono", {href: shell.link("requests", {id})}, id)])
	}

	function forget() {
		stop?.abort()
		messages = []
		for (const node of [talk, outcome, wire]) fill(node)
		answer.hidden = true
		answer.dataset.state = "idle"
	}

	const compose = h("div.compose", offers.node, text, pictures, h("div.line", file, button(t("play.image"), {icon: "plus", kind: "quiet", onclick: () => file.click()}), h("details", h("summary", t("play.tools")), tools), h("span.end", sender)))
	return {
		head: [h("div.tools", button(t("play.new"), {icon: "plus", onclick: forget}))],
		body: h("div.body.scroll", h("div.page", h("div.two", h("div.form", h("div.cols", field(t("f.protocol"), protocol), field(t("f.model"), model), field(t("f.session"), sessionId)), models, talk, answer, outcome, compose), h("div.form", block(t("d.plan"), "", plan), block(t("play.wire"), "", h("div.inner", wire)))))),
		close: () => stop?.abort()
	}
}

// Completion of instructions after `<**`.
function completion(box) {
	const node = h("div", {role: "listbox", id: "offers", label: t("play.instructions"), hidden: true})
	let at = 0
	let found = []
	const begun = () => /<\*\*([^*>]*)$/.exec(box.value.slice(0, box.selectionStart))?.[1]

	function show() {
		const start = begun()?.toLowerCase()
		found = start === undefined ? [] : offers.names.filter(name => name.toLowerCase().includes(start)).slice(0, 40)
		node.hidden = !found.length
		fill(node, found.map((name, n) => h("div", {role: "option", id: `offer-${n}`, "aria-selected": String(n === at), onmousedown: event => {
			event.preventDefault()
			take(name)
		}}, h("code", `<**${name}**>`))))
		box.setAttribute("aria-activedescendant", found.length ? `offer-${at}` : "")
		node.children[at]?.scrollIntoView({block: "nearest"})
	}

	function take(name) {
		const end = box.selectionStart
		box.setRangeText(`${name}**> `, end - begun().length, end, "end")
		show()
	}

	// Handles a key while offers are shown.
	function key(event) {
		const by = {ArrowDown: 1, ArrowUp: -1}[event.key]
		if (node.hidden || (!by && !["Enter", "Tab", "Escape"].includes(event.key))) return false
		event.preventDefault()
		event.stopPropagation()
		if (by) {
			at = (at + by + found.length) % found.length
			show()
		} else if (event.key === "Escape") node.hidden = true
		else take(found[at])
		return true
	}
	for (const [name, value] of [["aria-controls", "offers"], ["aria-autocomplete", "list"]]) box.setAttribute(name, value)
	box.addEventListener("input", () => {
		at = 0
		show()
	})
	box.addEventListener("blur", () => (node.hidden = true))
	const offers = {node, names: FIXED, key}
	return offers
}
