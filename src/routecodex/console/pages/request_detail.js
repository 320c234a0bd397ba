// The detail of one request: timing, plan, attempts, usage and cost, notices.
import {dim, fill, h, icon, raw} from "../dom.js"
import {get} from "../net.js"
import {code, failure, iconButton, notices, planSteps, statusTag, table, tag, target} from "../parts.js"
import {NONE, count, duration, known, millis, money, num, seconds, t, time} from "../text.js"

const section = (name, side, ...kids) => h(`section.stack@${name}`, h("h3.line", t(`d.${name}`), side && h("span.end.dim", side)), kids)
const nothing = () => h("p.dim", NONE)

/** The panel beside a list; `walk` moves to the next (1) or previous (-1) row. @param {Shell} shell */
export function requestDetail(shell, {walk, close}) {
	const node = h("aside.panel@request-detail", {role: "region", tabindex: 0})
	let shown = ""
	const move = (sign, name, onclick) => iconButton(sign, t(`w.${name}`), {test: `detail-${name}`, onclick})
	const head = row => h("header.stack",
		h("div.line", row.request && statusTag(row), h("h2.mono.clip", raw(shown)), h("div.line.end", move("up", "prev", () => walk(-1)), move("down", "next", () => walk(1)), move("close", "close", close))),
		row.request && [h("div.line.sub", row.client && h("a", {href: shell.to({client: row.client})}, raw(row.client)), row.agent && raw(row.agent), row.session && h("a.mono.clip.link", {href: shell.link("sessions", {id: row.session})}, raw(row.session)), dim(time(row.time))),
			h("div.line.sub", row.route && tag(raw(row.route)), row.role && row.role !== "main" && tag(raw(row.role)), raw(row.model, "clip"), icon("arrow"), h("b.line", target(row.target)))])
	const fact = (name, value) => h("div", h("dt", t(`w.${name}`)), h("dd", value))
	const facts = row => h("dl.facts", fact("first", seconds(row.first_byte)), fact("total", seconds(row.seconds)), fact("tokens", row.input_tokens == null ? NONE : [count(row.input_tokens), h("span.unit", `/ ${num(row.output_tokens ?? 0)}`)]), fact("cost", money(row.cost)))
	const links = row => h("div.line.pad", h("a.btn", {href: shell.link("inspector", {id: row.request})}, t("nav.inspector")), row.session && h("a.btn", {href: shell.to({session: row.session})}, t("req.group")))
	const show = row => [head(row), row.error && h("p.note.err", raw(row.error)), facts(row), timing(row), section("plan", "", row.plan ? planSteps(row.plan) : h("p.dim", raw(row.reason))), attempts(row), usage(row), section("notices", "", row.notices?.length ? notices(row.notices) : nothing()), links(row)]

	async function read(id) {
		const content = await get(`requests/${encodeURIComponent(id)}`).then(found => show(found.request), error => [head({}), failure(error, () => read(id))])
		if (shown === id) fill(node, content)
	}

	return {
		node,
		show(id) {
			if (id === shown) return
			shown = node.dataset.requestId = id
			node.setAttribute("aria-label", id)
			node.scrollTop = 0
			fill(node)
			if (id) read(id)
		},
		again: id => id === shown && read(id),
	}
}

function timing(row) {
	const calls = row.calls ?? []
	const total = Math.max(1, (row.seconds ?? 0) * 1000, ...calls.map(one => one.end_ms ?? one.first_byte_ms ?? one.start_ms))
	const lane = (name, note, from, to, cls) => h("div.w", h("span.clip", {title: name}, raw(name), note && ` ${note}`), h("span.lane", h("i", {class: cls, style: {left: `${(from / total) * 100}%`, width: `${((to - from) / total) * 100}%`}})), h("span.num.dim", millis(to - from)))
	const lanes = calls.map(one => {
		const name = one.target.split(".").slice(0, 2).join(".")
		const end = one.end_ms ?? total
		if (one.error || one.status >= 400) return lane(name, one.status ?? t("w.failed"), one.start_ms, end, "cbad")
		const first = one.first_byte_ms ?? one.start_ms
		const cls = one.kind === "internal" ? "c3" : "c1"
		return [first > one.start_ms && lane(name, t("w.first"), one.start_ms, first, `${cls} ghost`), first < end && lane(name, "", first, end, cls)]
	})
	const before = calls[0]?.start_ms
	const axis = h("div.w.ax", h("span"), h("span.lane", [0, 0.5, 1].map(part => h("span", {style: {left: `${part * 100}%`}}, duration((total * part) / 1000).join(" ")))), h("span"))
	return section("timing", t("d.attempts_n", {n: row.attempts ?? calls.length, r: row.rounds ?? 1}), h("div", before > 0 && lane("", t("wait.read"), 0, before, "c7"), lanes, calls.length ? axis : nothing()))
}

function attempts(row) {
	const columns = [
		["", one => one.n, "dim"],
		["", one => [h("b.line", target(one.target)), one.error && h("p.bad", raw(one.error))], "wrap"],
		["", one => [one.kind !== "attempt" && tag(raw(one.kind)), " ", one.status != null && code(one.status)]],
		["", one => millis(one.end_ms && one.end_ms - one.start_ms), "num dim"],
	]
	return section("attempts", "", row.calls?.length ? table(t("d.attempts"), columns, row.calls, one => ({"data-testid": "attempt", "data-target": one.target})) : nothing())
}

function usage(row) {
	const parts = row.usage ?? []
	const sum = {part: "total", tokens: parts.reduce((all, part) => all + (part.tokens ?? 0), 0), cost: row.cost}
	const columns = [
		[t("d.part"), part => known("part", part.part)],
		[t("w.tokens"), part => (part.tokens == null ? NONE : num(part.tokens)), "num"],
		[t("d.price"), part => (part.price == null ? part !== sum && NONE : num(part.price, 4)), "num dim"],
		[t("w.cost"), part => money(part.cost), "num"],
	]
	return section("usage", raw(row.cost_kind), parts.length ? table(t("d.usage"), columns, [...parts, sum]) : nothing())
}
