// The detail of one request: timing, plan, attempts, usage and cost, notices.
import {fill, h, icon, raw} from "../dom.js"
import {call, url} from "../net.js"
import {code, failure, iconButton, notices, planSteps, statusTag, tag, target} from "../parts.js"
import {NONE, count, duration, has, millis, money, num, seconds, t, time} from "../text.js"

const PARTS = {input: "c1", cache_read: "c5", cache_write: "c3", cache_write_1h: "c3", output: "c2", reasoning: "c4"}
const known = (area, name) => (has(`${area}.${name}`) ? t(`${area}.${name}`) : name)
const section = (name, side, ...kids) => h("section", {test: name}, h("h3", t(`d.${name}`), side && h("span", side)), kids)

/** The panel beside a list; `walk` moves to the next (1) or previous (-1) row. @param {Shell} shell */
export function requestDetail(shell, {walk, close}) {
	const node = h("aside.panel", {test: "request-detail", role: "region", tabindex: 0})
	let shown = ""
	const closer = iconButton("close", t("do.close"), {test: "detail-close", onclick: close})
	const moves = () => h("div.end", iconButton("up", t("d.prev"), {test: "detail-prev", onclick: () => walk(-1)}), iconButton("down", t("d.next"), {test: "detail-next", onclick: () => walk(1)}), closer)
	const head = row => h("header",
		h("div.line", row.request && statusTag(row), h("h2.mono.clip", shown), moves()),
		row.request && [h("div.line.sub", row.client && h("a", {href: shell.link("requests", {client: row.client})}, raw(row.client)), row.agent && raw(row.agent), row.session && h("a.mono.clip.link", {href: shell.link("sessions", {id: row.session})}, raw(row.session)), h("span.dim", time(row.time))),
			h("div.line.sub", row.route && tag(raw(row.route)), row.role && row.role !== "main" && tag(raw(row.role)), h("span.flow", raw(row.model, "clip"), icon("arrow"), h("b.clip", target(row.target))))])
	const fact = (name, value) => h("div", h("dt", t(name)), h("dd", value))
	const facts = row => h("dl.facts", fact("col.first", seconds(row.first_byte)), fact("col.total", seconds(row.seconds)), fact("kpi.tokens", row.input_tokens == null ? NONE : [count(row.input_tokens), h("span.unit", `/ ${num(row.output_tokens ?? 0)}`)]), fact("col.cost", money(row.cost)))
	const links = row => h("div.line.pad", h("a.btn", {href: shell.link("inspector", {id: row.request})}, t("d.inspect")), row.session && h("a.btn", {href: shell.link("requests", {session: row.session})}, t("d.of_session")))

	async function read(id) {
		try {
			const {request: row} = await call(url(`/admin/requests/${encodeURIComponent(id)}`))
			if (shown === id) fill(node, head(row), row.error && h("p.note.bad", raw(row.error)), facts(row), timing(row), section("plan", "", row.plan ? planSteps(row.plan) : h("p.dim", row.reason ? raw(row.reason) : t("d.no_plan"))), attempts(row), usage(row), section("notices", "", notices(row.notices)), links(row))
		} catch (error) {
			if (shown === id) fill(node, head({}), failure(error, error.status !== 404 && (() => read(id))))
		}
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
		// Reads the request again, after it changed.
		again: id => id === shown && read(id)
	}
}

function timing(row) {
	const calls = row.calls ?? []
	const total = Math.max(1, (row.seconds ?? 0) * 1000, ...calls.map(one => one.end_ms ?? one.first_byte_ms ?? one.start_ms))
	const lane = (name, from, to, cls, ghost) => h("div.w", h("span.clip", {title: name}, name), h("span.lane", h("i", {class: `${cls} ${ghost ? "ghost" : ""}`, style: {left: `${(from / total) * 100}%`, width: `${((to - from) / total) * 100}%`}})), h("span.num.dim", millis(to - from)))
	const lanes = calls.map(one => {
		const name = one.target.split(".").slice(0, 2).join(".")
		const end = one.end_ms ?? total
		if (one.error || one.status >= 400) return lane(`${name} (${one.status ? `HTTP ${one.status}` : t("wait.failed")})`, one.start_ms, end, "cbad")
		const first = one.first_byte_ms ?? end
		const cls = one.kind === "internal" ? "c3" : "c1"
		return [lane(t("wait.first", {t: name}), one.start_ms, first, cls, true), first < end && lane(t("wait.stream", {t: name}), first, end, cls)]
	})
	const before = calls[0]?.start_ms
	const [, size] = duration(total / 1000)
	const scale = {ms: 1, s: 1000, min: 60000}[size]
	const axis = h("div.w.ax", h("span"), h("span.lane", [0, 1, 2, 3, 4].map(n => h("span", {style: {left: `${n * 25}%`}}, num((total * n) / 4 / scale, 1), n === 4 && ` ${t(`unit.${size}`)}`))), h("span"))
	return section("timing", t("d.attempts_n", {n: row.attempts ?? calls.length, r: row.rounds ?? 1}), h("div", before > 0 && lane(t("wait.read"), 0, before, "c7"), lanes, calls.length ? axis : h("p.dim", row.status == null ? t("d.under_way") : NONE)))
}

function attempts(row) {
	const line = one => h("li", {test: "attempt", "data-target": one.target}, h("span.dim", one.n), h("div", h("b", target(one.target)), one.error && h("p.bad", raw(one.error))), h("span.nw", one.kind !== "attempt" && tag(known("call", one.kind)), " ", one.status != null && code(one.status)), h("span.num.dim", millis(one.end_ms && one.end_ms - one.start_ms)))
	return section("attempts", "", row.calls?.length ? h("ol.tries", row.calls.map(line)) : h("p.dim", NONE))
}

function usage(row) {
	const parts = row.usage ?? []
	if (!parts.length) return section("usage", "", h("p.dim", t("us.none")))
	const weight = parts.some(part => part.cost) ? "cost" : "tokens"
	const line = part => h("tr", h("td", h("span.state", h("i.sq", {class: PARTS[part.part] ?? "c7"}), known("part", part.part))), h("td.num", part.tokens == null ? NONE : num(part.tokens)), h("td.num.dim", part.price == null ? NONE : num(part.price, 4)), h("td.num", money(part.cost)))
	const heads = ["us.part", "kpi.tokens", "us.price", "col.cost"].map((name, n) => h("th", {class: n && "num", scope: "col"}, t(name)))
	return section("usage", row.cost_kind && known("cost", row.cost_kind), h("div.stack", {"aria-hidden": "true"}, parts.map(part => h("i", {class: PARTS[part.part] ?? "c7", style: {"flex-grow": part[weight] ?? 0}}))),
		h("table.cost", h("thead", h("tr", heads)), h("tbody", parts.map(line)), h("tfoot", h("tr", h("td", t("col.total")), h("td.num", num(parts.reduce((sum, part) => sum + (part.tokens ?? 0), 0))), h("td"), h("td.num", money(row.cost))))))
}
