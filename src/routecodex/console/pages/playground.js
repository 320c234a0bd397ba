// The playground: a chat in any protocol, with plan, cost and raw wire beside the answer.
import {fill, h, raw} from "../dom.js"
import {get, may, post, send, url} from "../net.js"
import {block, button, errorText, field, iconButton, none, planSteps, pre, select, tag, target, toast} from "../parts.js"
import {inOut, money, seconds, t} from "../text.js"
import {PROTOCOLS, WIRES, pieces, readEvents} from "../wire.js"

const MOST_WIRE = 200_000
const FIXED = ["status", "help", "clear", "stopMessage:clear", "clock:clear", "agents:clear", 'stopMessage:""']

/** @type {Page} */
export const open = shell => {
	let messages = []
	let images = []
	let stop = null
	const talk = h("div.stack")
	const answer = h("div.said@play-answer", {"data-state": "idle", "aria-live": "polite", hidden: true})
	const wire = pre("", "play-wire")
	const plan = h("div@play-plan", none())
	const outcome = h("div.line.wraps.sub")
	const protocol = select("play-protocol", PROTOCOLS, shell.q("protocol") || "messages", {onchange: () => shell.set({protocol: protocol.value}, true)})
	const model = h("input.in.mono@play-model", {list: "models", value: shell.q("model")})
	const session = h("input.in.mono@play-session", {value: shell.q("session")})
	const models = h("datalist", {id: "models"})
	const tools = h("textarea.in.mono", {label: t("play.tools"), rows: 5, placeholder: "[]"})
	const pictures = h("div.line.wraps")
	const file = h("input.sr", {type: "file", accept: "image/*", multiple: true, tabindex: -1, label: t("play.image"), onchange: attach})
	const sender = button(t("play.send"), {kind: "primary", test: "play-send", disabled: !may("operator"), title: !may("operator") && t("err.role"), onclick: () => (stop ? stop.abort() : say())})
	const offers = completion({rows: 3, label: t("play.text"), placeholder: t("play.hint"), onkeydown: onKey})
	const text = offers.box

	get("providers").then(({providers}) => {
		const full = providers.flatMap(one => one.models.map(name => `${one.name}.${name}`))
		const short = providers.flatMap(one => [one.name, ...one.keys.map(key => key.name)])
		fill(models, full.map(value => h("option", {value})))
		if (!model.value) {
			model.value = full[0] ?? ""
			// A name that is being typed replaces it.
			if (document.activeElement === model) model.select()
		}
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

	function showImages(left = images) {
		images = left
		fill(pictures, images.map(one => tag([raw(one.name), iconButton("close", t("w.cancel"), {onclick: () => showImages(images.filter(other => other !== one))})], "acc")))
	}

	function onKey(event) {
		if (offers.key(event) || event.key !== "Enter" || event.shiftKey || event.isComposing) return
		event.preventDefault()
		if (!stop) sender.click()
	}

	const bubble = one => h("div.said", {class: one.role, dir: "auto"}, one.text, one.images?.map(image => tag(raw(image.name))))

	async function say() {
		const said = text.value.trim()
		if (!said && !images.length) return
		let extra
		try {
			extra = tools.value.trim() && {tools: JSON.parse(tools.value)}
		} catch (error) {
			return toast(`${t("play.tools")}: ${error.message}`, "error")
		}
		messages.push({role: "user", text: said, images})
		showImages([])
		text.value = ""
		fill(talk, messages.map(bubble))
		const kind = WIRES[protocol.value]
		const name = model.value.trim()
		const body = {...kind.body(name, messages), ...extra}
		await stream({protocol: protocol.value, path: kind.path(name), body, ...(session.value && {session: session.value.trim()})})
	}

	function become(state) {
		answer.dataset.state = state
		answer.hidden = state === "idle"
		sender.textContent = t(state === "streaming" ? "play.stop" : "play.send")
	}

	async function stream(asked) {
		stop = new AbortController()
		become("streaming")
		const spoken = h("span", {dir: "auto"})
		const called = h("code")
		fill(answer, spoken, called)
		fill(outcome)
		fill(wire, `POST ${asked.path}\n\n${JSON.stringify(asked.body, null, 2)}\n\n`)
		explain(asked)
		const started = performance.now()
		let first = 0
		try {
			const reply = await send(url("/admin/playground"), {body: asked, signal: stop.signal})
			await readEvents(reply.body, (frame, data) => {
				first ||= performance.now() - started
				if (wire.textContent.length < MOST_WIRE) wire.append(`${frame}\n\n`)
				const piece = pieces(data)
				spoken.append(piece.text || "")
				called.append(piece.tool || "")
				if (piece.error) throw new Error(piece.error)
			})
			finished(reply.headers.get("x-request-id"), first / 1000)
		} catch (error) {
			if (error.name !== "AbortError") {
				messages.pop()
				answer.append(h("p", errorText(error)))
				return become("error")
			}
		} finally {
			stop = null
		}
		messages.push({role: "assistant", text: spoken.textContent})
		become("done")
	}

	async function explain({session: id, ...asked}) {
		fill(plan, await post("explain", {...asked, headers: id ? {"x-session-id": id} : {}}).then(planSteps, error => h("p.bad", errorText(error))))
	}

	async function finished(id, first) {
		const {request: row} = await get(`requests/${id}`).catch(() => ({}))
		fill(outcome, row && h("b.line", target(row.target)), h("span", t("w.first"), " ", seconds(first)), row && [h("span", `${t("w.tokens")} ${inOut(row)}`), tag(money(row.cost)), h("a.link.mono", {href: shell.to({id})}, raw(id))])
	}

	function forget() {
		stop?.abort()
		messages = []
		for (const node of [talk, outcome, wire]) fill(node)
		become("idle")
	}

	const compose = h("div.stack.compose", offers.node, text, pictures, h("div.line.wraps", file, button(t("play.image"), {icon: "plus", kind: "quiet", onclick: () => file.click()}), h("details", h("summary", t("play.tools")), tools), h("span.end", sender)))
	return {
		head: h("div.tools", button(t("play.new"), {icon: "plus", onclick: forget})),
		page: h("div.two", h("div.stack", h("div.cols", field(t("w.protocol"), protocol), field(t("w.model"), model), field(t("w.session"), session)), models, talk, answer, outcome, compose), h("div.stack", block(t("d.plan"), "", h("div.inner", plan)), block(t("play.wire"), "", h("div.inner", wire)))),
		close: () => stop?.abort(),
	}
}

// A text field that completes instructions after `<**`.
function completion(props) {
	const box = h("textarea.in@play-text", {...props, "aria-controls": "offers", "aria-autocomplete": "list", oninput: () => show(0), onblur: () => (node.hidden = true)})
	const node = h("div.float", {role: "listbox", id: "offers", label: t("play.instructions"), hidden: true})
	let at = 0
	let found = []
	const begun = () => /<\*\*([^*>]*)$/.exec(box.value.slice(0, box.selectionStart))?.[1]

	function show(to) {
		at = to
		const start = begun()?.toLowerCase()
		found = start === undefined ? [] : offers.names.filter(name => name.toLowerCase().includes(start)).slice(0, 40)
		node.hidden = !found.length
		const onmousedown = name => event => {
			event.preventDefault()
			take(name)
		}
		fill(node, found.map((name, n) => h("div", {role: "option", id: `offer-${n}`, "aria-selected": String(n === at), onmousedown: onmousedown(name)}, h("code", `<**${name}**>`))))
		box.setAttribute("aria-activedescendant", found.length ? `offer-${at}` : "")
		node.children[at]?.scrollIntoView({block: "nearest"})
	}

	function take(name) {
		const end = box.selectionStart
		box.setRangeText(`${name}**> `, end - begun().length, end, "end")
		show(0)
	}

	function key(event) {
		const by = {ArrowDown: 1, ArrowUp: -1}[event.key]
		if (node.hidden || (!by && !["Enter", "Tab", "Escape"].includes(event.key))) return false
		event.preventDefault()
		event.stopPropagation()
		if (by) show((at + by + found.length) % found.length)
		else if (event.key === "Escape") node.hidden = true
		else take(found[at])
		return true
	}
	const offers = {box, node, names: FIXED, key}
	return offers
}
