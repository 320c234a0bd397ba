// The overview: figures of a range, what needs attention, plots, keys, clients and models.
import {dim, fill, h, raw} from "../dom.js"
import {get, post, session} from "../net.js"
import {HOURS, act, bar, block, button, colour, empty, failure, filter, keyState, keyTable, none, stateSign, table, updateKeys} from "../parts.js"
import {plot, sparkline} from "../plot.js"
import {NONE, count, duration, iso, money, now, num, percent, relative, scaled, seconds, t, unit} from "../text.js"

const FILTERS = ["client", "provider", "model"]
const points = found => found.series[0]?.points ?? []
const ratio = (part, all) => (all ? part / all : null)
const failed = problems => problems?.some(one => one.severity === "error")
const tokens = point => (point.input_tokens ?? 0) + (point.output_tokens ?? 0)
const cache = point => ratio(point.cache_read_tokens ?? 0, point.input_tokens)
const errors = point => ratio(point.errors, point.requests)

/** @type {Page} */
export const open = shell => {
	let providers = []
	let clients = []
	let wrong = false
	let stale = false
	let shown
	const trouble = h("div")
	const kpis = h("dl.kpis.block")
	const alerts = h("ul.alerts.block@attention", {label: t("alert.title")})
	const keys = h("div")
	const ranks = h("div.stack", h("div"), h("div"))
	const range = h("div.line.seg@range", {role: "group", label: t("w.range")})
	const chips = h("div.line.chips")
	const zoom = (from, to) => shell.set({since: iso(from), until: iso(to)})
	const traffic = plot({test: "plot-requests", label: t("plot.requests"), unit: t("unit.per_s"), stacked: true, zoom})
	const delay = plot({test: "plot-ttft", label: t("w.ttft"), unit: t("unit.ms"), zoom})
	const small = (text, note) => [text, h("small", note)]
	const allKeys = () => providers.flatMap(one => one.keys)

	// The span of the view: a zoom, or the range up to now.
	function span() {
		const [since, until] = [shell.q("since"), shell.q("until")].map(Date.parse)
		if (since < until) return {since, until, zoomed: true}
		return {since: now() - (HOURS[shell.q("range")] ?? 1) * 36e5, until: now(), zoomed: false}
	}
	const filters = () => Object.fromEntries(FILTERS.map(name => [name, shell.q(name)]))
	const through = more => shell.to({...filters(), range: shell.q("range") || "1h", since: shell.q("since"), until: shell.q("until"), ...more})

	function showTools() {
		const {zoomed} = span()
		const pressed = name => String(!zoomed && name === (shell.q("range") || "1h"))
		fill(range, Object.keys(HOURS).map(name => h("button.btn.quiet", {type: "button", "data-range": name, "aria-pressed": pressed(name), onclick: () => shell.set({range: name, since: "", until: ""})}, t(`range.${name.at(-1)}`, {n: Number.parseInt(name, 10)}))))
		const values = {provider: () => providers.map(one => one.name), model: () => [...new Set(providers.flatMap(one => one.models))], client: () => clients.map(one => one.name)}
		fill(chips, zoomed && button(t("f.unzoom"), {icon: "close", onclick: () => shell.set({since: "", until: ""})}), FILTERS.map(name => filter(shell, name, values[name])))
	}

	async function read() {
		const view = span()
		shown = view
		const length = (view.until - view.since) / 1000
		const step = Math.max(1, Math.round(length / 60))
		const series = (since, params) => get("series", {since: iso(since), until: iso(view.until), ...filters(), ...params})
		try {
			const [whole, fine, split] = await Promise.all([series(view.since - length * 1000, {step: Math.round(length)}), series(view.since, {step}), series(view.since, {step, by: "provider"})])
			if (shown !== view) return
			fill(trouble)
			figures(points(whole), points(fine), length)
			draw(fine, split)
		} catch (error) {
			fill(trouble, failure(error, read))
		}
	}

	// One point over the whole range: percentiles cannot be added up.
	function figures(whole, fine, length) {
		const zero = {requests: 0, errors: 0, cost: null}
		const within = point => Date.parse(point.t) >= shown.since - 1000
		const here = whole.findLast(within) ?? zero
		const before = whole.find(point => !within(point)) ?? zero
		const rate = here.requests / length
		const [amount, size] = scaled(tokens(here) / length)
		const kpi = (name, value, text, foot, values, cls, props) => h(`div.kpi@kpi-${name}`, {"data-value": value ?? "", ...props}, h("dt.clip.small", h("a", {href: through(name === "errors" && {status: "error"})}, t(`w.${name}`))), h("dd", text), h("dd.line.dim.small", h("span.clip", foot), sparkline(fine.map(values), cls)))
		fill(kpis,
			kpi("requests", rate, unit(num(rate, rate < 0.1 ? 4 : rate < 10 ? 2 : 1), t("unit.per_s")), before.requests ? change(here.requests, before.requests) : t("req.n", {n: num(here.requests)}), one => one.requests, "c1", {"data-count": here.requests, title: t("req.n", {n: num(here.requests)})}),
			kpi("tokens", tokens(here) / length, unit(amount, size + t("unit.per_s")), change(tokens(here), tokens(before)), tokens, "c2"),
			kpi("cost", here.cost, money(here.cost), here.cost != null && t("kpi.per_day", {n: money((here.cost / length) * 86400, 2)}), one => one.cost, "c3"),
			kpi("cache", cache(here), percent(cache(here)), change(cache(here), cache(before), true), cache, "c5"),
			kpi("errors", errors(here), percent(errors(here)), `${num(here.errors)} / ${count(here.requests)}`, one => one.errors, "cbad"),
			kpi("ttft", here.first_byte_p50, seconds(here.first_byte_p50), here.first_byte_p95 != null && `p95 ${duration(here.first_byte_p95).join(" ")}`, one => one.first_byte_p50, "c4"))
	}

	function draw(fine, split) {
		const rows = points(fine)
		const times = rows.map(point => Date.parse(point.t))
		const layers = split.series.filter(one => one.points.some(point => point.requests)).map(({name, points: found}) => {
			const at = new Map(found.map(point => [Date.parse(point.t), (point.requests - point.errors) / fine.step]))
			return {name, cls: name === "other" ? "c7" : colour(name), href: through({provider: name}), values: times.map(time => at.get(time) ?? 0)}
		})
		traffic.set(times, [...layers, {name: t("w.errors"), cls: "cbad", values: rows.map(point => point.errors / fine.step)}])
		const ms = name => rows.map(point => point[name] && point[name] * 1000)
		delay.set(times, [{name: "p95", cls: "c4", dash: true, values: ms("first_byte_p95")}, {name: "p50", cls: "c1", area: true, values: ms("first_byte_p50")}])
	}

	async function readRest() {
		const {since, until} = span()
		const take = (name, params, use) => get(name, params).then(use, () => {})
		await Promise.all([
			take("providers", {}, found => (providers = found.providers)),
			take("clients", {}, found => (clients = found.clients)),
			take("config", {}, found => (wrong = failed(found.problems))),
			...["client", "model"].map((by, n) => take("usage", {by, since: iso(since), until: iso(until), ...filters()}, found => fill(ranks.children[n], rank(by, found.rows)))),
		])
		showKeys()
		showTools()
	}

	function showKeys() {
		attention()
		fill(keys, allKeys().length ? keyTable(shell, allKeys()) : empty(t("pr.empty"), "routecodex init"))
	}

	function rank(by, rows) {
		rows.sort((a, b) => b.cost - a.cost || b.requests - a.requests)
		const most = Math.max(...rows.map(row => row.requests))
		const columns = [
			[t(`w.${by}`), row => h("a", {href: through({[by]: row[by]})}, row[by] ? raw(row[by]) : t("no_name")), "clip"],
			[t("w.requests"), row => [bar(row.requests / most, "c1"), num(row.requests)], "num"],
			[t("w.cost"), row => money(row.cost, 2), "num"],
		]
		return block(t(`w.${by}`), rows.length > 5 && t("more", {n: num(rows.length - 5)}), rows.length ? table(t(`w.${by}`), columns, rows.slice(0, 5)) : none())
	}

	function attention() {
		const item = (kind, text, help) => h("li.line", {"data-kind": kind}, h("p", text), help)
		const visit = name => h("a.btn", {href: shell.link(name)}, t("w.open"))
		const reset = key => act(t("w.reset"), {name: key.name}, async () => {
			await post("health/reset", {target: key.name})
			await readRest()
		})
		const bad = allKeys().filter(key => !["ok", "disabled"].includes(key.state))
		// The limits of a team are listed with each of its clients.
		const limits = new Map(clients.flatMap(one => one.limits).map(one => [one.owner + one.limit, one]))
		const tight = [...limits.values()].filter(one => one.max && one.used / one.max >= (one.warn_at ?? 0.8))
		fill(alerts, wrong && item("config", [stateSign("out"), " ", t("alert.config")], visit("config")),
			bad.map(key => item(key.state === "out" ? "refused" : key.state, [keyState(key), " ", h("b", raw(key.name)), " ", dim(raw(key.error || key.reason))], key.state === "out" ? visit("providers") : reset(key))),
			tight.map(one => item("budget", [stateSign(one.used >= one.max ? "out" : "limited"), " ", t("alert.budget", {owner: one.owner.replace(/^\w+:/, ""), limit: one.limit, share: num((one.used / one.max) * 100)})], visit("keys"))))
	}

	shell.on("health", data => {
		updateKeys(providers, data.keys)
		showKeys()
	})
	shell.on("config", data => {
		wrong = !data.reloaded && failed(data.problems)
		attention()
	})
	for (const topic of ["stats", "requests"]) shell.on(topic, () => (stale = true))
	shell.every(1000, () => alerts.querySelector("[data-kind=cooling]") && !alerts.contains(document.activeElement) && attention())
	shell.every(3000, () => {
		if (!stale || shown.zoomed) return
		stale = false
		read()
	})
	shell.every(30000, readRest)
	function update() {
		showTools()
		read()
		readRest()
	}
	update()
	const {server} = session.me
	return {
		head: [h("p.dim.small.hide-s", t("server.about", {...server, up: relative(server.started_at)})), h("div.tools.line", range, chips)],
		page: [trouble, kpis, alerts,
			h("div.two", block(small(t("plot.requests"), t("unit.per_s")), traffic.key, traffic.node), block(small(t("w.ttft"), t("unit.ms")), delay.key, delay.node)),
			h("div.two", block(small(t("keys.title"), t("hour")), null, keys), ranks)],
		refresh(polled) {
			read()
			if (!polled || !alerts.parentNode.contains(document.activeElement)) readRest()
		},
		update,
	}
}

// The change against the range before: relative, or of a share in points.
function change(here, before, share) {
	if (here == null || !before) return NONE
	const by = share ? here - before : (here - before) / before
	return h("span", {class: share && (by >= 0 ? "up" : "bad")}, `${by >= 0 ? "↑" : "↓"} ${num(Math.abs(by) * 100, share ? 1 : 0)} %`)
}
