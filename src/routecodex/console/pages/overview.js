// The overview: figures of a range, what needs attention, plots, keys, clients and models.
import {fill, h, raw} from "../dom.js"
import {call, url} from "../net.js"
import {act, as, bar, button, colour, empty, failure, filter, keyState, square, stateSign, table, tr} from "../parts.js"
import {plot, sparkline} from "../plot.js"
import {NONE, count, countdown, duration, money, now, num, percent, scaled, seconds, t, unit} from "../text.js"

const HOURS = {"1h": 1, "6h": 6, "24h": 24, "7d": 168, "30d": 720}
const FILTERS = ["client", "provider", "model"]
const iso = at => new Date(at).toISOString()
const points = found => found.series[0]?.points ?? []
const ratio = (part, all) => (all ? part / all : null)
const failed = problems => problems?.some(one => one.severity === "error")
const tokens = point => (point.input_tokens ?? 0) + (point.output_tokens ?? 0)
const cache = point => ratio(point.cache_read_tokens ?? 0, point.input_tokens)

/** @param {Shell} shell @returns {View} */
export function open(shell) {
	let providers = []
	let clients = []
	let wrong = false
	let stale = false
	let shown
	const kpis = h("dl.kpis")
	const alerts = h("ul.alerts", {test: "attention", label: t("alert.title")})
	const zoom = (from, to) => shell.set({since: iso(from), until: iso(to)})
	const traffic = plot({test: "plot-requests", label: t("plot.requests"), unit: t("unit.per_s"), stacked: true, zoom})
	const delay = plot({test: "plot-ttft", label: t("kpi.ttft"), unit: t("unit.ms"), zoom})
	const keys = h("div")
	const ranks = h("section.block")
	const range = h("div.seg", {role: "group", test: "range", label: t("f.range")})
	const chips = h("div.chips")
	const trouble = h("div")
	const title = (text, small) => h("h2", text, h("small", small))
	const body = h("div.body.scroll", h("div.page", trouble, kpis, alerts,
		h("div.two", h("section.block", h("header", title(t("plot.requests"), t("unit.requests_s")), traffic.key), traffic.node), h("section.block", h("header", title(t("kpi.ttft"), t("unit.ms")), delay.key), delay.node)),
		h("div.two", h("section.block", h("header", title(t("keys.title"), t("keys.hour"))), keys), ranks)))

	// The span of the view: a zoom, or the range up to now.
	function span() {
		const [since, until] = [shell.q("since"), shell.q("until")].map(Date.parse)
		if (since < until) return {since, until, zoomed: true}
		return {since: now() - (HOURS[shell.q("range")] ?? 1) * 36e5, until: now(), zoomed: false}
	}
	const filters = () => Object.fromEntries(FILTERS.map(name => [name, shell.q(name)]))
	const through = more => shell.link("requests", {...filters(), range: shell.q("range"), since: shell.q("since"), until: shell.q("until"), ...more})

	function showTools() {
		const {zoomed} = span()
		fill(range, Object.keys(HOURS).map(name => h("button", {type: "button", "data-range": name, "aria-pressed": String(!zoomed && name === (shell.q("range") || "1h")), onclick: () => shell.set({range: name, since: "", until: ""})}, t(`rg.${name}`))))
		const values = {provider: () => providers.map(one => one.name), model: () => [...new Set(providers.flatMap(one => one.models))], client: () => clients.map(one => one.name)}
		fill(chips, zoomed && button(t("f.unzoom"), {icon: "close", onclick: () => shell.set({since: "", until: ""})}), FILTERS.map(name => filter(name, shell.q(name), values[name], value => shell.set({[name]: value}))))
	}

	async function read() {
		const view = span()
		shown = view
		const length = view.until - view.since
		const step = Math.max(1, Math.round(length / 60000))
		const series = (since, params) => call(url("/admin/series", {since: iso(since), until: iso(view.until), ...filters(), ...params}))
		try {
			const [whole, fine, split] = await Promise.all([series(view.since - length, {step: Math.round(length / 1000)}), series(view.since, {step}), series(view.since, {step, by: "provider"})])
			if (shown !== view) return
			fill(trouble)
			figures(points(whole), points(fine), length / 1000)
			draw(fine, split)
		} catch (error) {
			fill(trouble, failure(error, read))
		}
	}

	// Sums come from one point over the whole range, because percentiles cannot be added up.
	function figures(whole, fine, length) {
		const zero = {requests: 0, errors: 0, cost: null}
		const within = point => Date.parse(point.t) >= shown.since - 1000
		const here = whole.findLast(within) ?? zero
		const before = whole.find(point => !within(point)) ?? zero
		const rate = here.requests / length
		const [amount, size] = scaled(tokens(here) / length)
		const kpi = (name, value, text, foot, values, cls, props) => h("div.kpi", {test: `kpi-${name}`, "data-value": value ?? "", ...props}, h("dt.clip", t(`kpi.${name}`)), h("dd", text), h("dd.kfoot", h("span.clip", foot), sparkline(values, cls)))
		const [late, lateUnit] = duration(here.first_byte_p95 ?? 0)
		fill(kpis,
			kpi("requests", rate, unit(num(rate, rate < 10 ? 2 : 1), "per_s"), change(here.requests, before.requests), fine.map(one => one.requests), "c1", {"data-count": here.requests, title: t("req.n", {n: num(here.requests)})}),
			kpi("tokens", tokens(here) / length, unit(amount, size ? `${size}_s` : "per_s"), change(tokens(here), tokens(before)), fine.map(tokens), "c2"),
			kpi("cost", here.cost, money(here.cost), here.cost != null && t("kpi.per_day", {n: num((here.cost / length) * 86400)}), fine.map(one => one.cost), "c3"),
			kpi("cache", cache(here), percent(cache(here)), change(cache(here), cache(before), true), fine.map(cache), "c5"),
			kpi("errors", ratio(here.errors, here.requests), percent(ratio(here.errors, here.requests)), t("kpi.n_of", {n: num(here.errors), m: count(here.requests)}), fine.map(one => one.errors), "cbad"),
			kpi("ttft", here.first_byte_p50, seconds(here.first_byte_p50), here.first_byte_p95 != null && t("kpi.p95", {v: `${late} ${t(`unit.${lateUnit}`)}`}), fine.map(one => one.first_byte_p50), "c4"))
	}

	function draw(fine, split) {
		const rows = points(fine)
		const times = rows.map(point => Date.parse(point.t))
		const layers = split.series.filter(one => one.points.some(point => point.requests)).map(one => {
			const at = new Map(one.points.map(point => [Date.parse(point.t), (point.requests - point.errors) / fine.step]))
			return {name: one.name === "other" ? t("plot.other") : raw(one.name), cls: one.name === "other" ? "c7" : colour(one.name), values: times.map(time => at.get(time) ?? 0)}
		})
		traffic.set(times, [...layers, {name: t("plot.errors"), cls: "cbad", values: rows.map(point => point.errors / fine.step)}])
		const ms = name => rows.map(point => point[name] && point[name] * 1000)
		delay.set(times, [{name: t("plot.p95"), cls: "c4", dash: true, values: ms("first_byte_p95")}, {name: t("plot.p50"), cls: "c1", area: true, values: ms("first_byte_p50")}])
	}

	async function readRest() {
		const part = (path, take) => call(path).then(take, () => {})
		await part(url("/admin/providers"), found => {
			providers = found.providers
			showKeys()
		})
		const {since, until} = span()
		await Promise.all([part(url("/admin/usage", {by: ["client", "model"], since: iso(since), until: iso(until), ...filters()}), showRanks), part(url("/admin/clients"), found => (clients = found.clients)), part(url("/admin/config"), found => (wrong = failed(found.problems)))])
		attention()
		showTools()
	}

	function showKeys() {
		const rows = providers.flatMap(one => one.keys)
		attention()
		fill(keys, rows.length ? table(t("keys.title"), [t("keys.key"), t("keys.state"), as("num", t("kpi.requests")), as("num", t("kpi.errors")), as("num hide-s", t("col.first")), as("hide-s", t("keys.quota")), as("num hide-s", t("col.cost"))], rows.map(keyRow)) : empty(t("pr.empty"), "routecodex init"))
	}

	function keyRow(key) {
		const left = key.quota?.length ? Math.min(...key.quota.map(one => one.remaining / one.limit)) : null
		return tr({test: "key-row", "data-key": key.name, "data-state": key.state}, [square(key.name), h("a.mono", {href: through({provider: key.name.split(".")[0]})}, raw(key.name))], keyState(key), as("num", num(key.requests)), as("num", percent(ratio(key.errors, key.requests))), as("num hide-s", seconds(key.first_byte_p50)),
			as("hide-s", left == null ? h("span.dim", t("keys.no_quota")) : [bar(left, left < 0.1 ? "cbad" : "c7"), percent(left)]), as("num hide-s", money(key.cost)))
	}

	function showRanks(found) {
		fill(ranks, ["client", "model"].map(by => {
			const sums = new Map()
			for (const row of found.rows) {
				const sum = sums.get(row[by]) ?? {requests: 0, cost: null}
				sums.set(row[by], {requests: sum.requests + row.requests, cost: row.cost == null ? sum.cost : sum.cost + row.cost})
			}
			const rows = [...sums].sort(([, a], [, b]) => b.cost - a.cost || b.requests - a.requests)
			const most = Math.max(...rows.map(([, row]) => row.requests))
			const line = ([name, row]) => h("li", h("a", {href: through({[by]: name})}, name ? raw(name, "clip") : h("span.dim", t("ranks.none")), h("span.dim", t("req.n", {n: num(row.requests)})), h("span.num", money(row.cost, 2)), bar(row.requests / most, "c1")))
			return [h("header", h("h2", t(`ranks.${by}`))), h("ul.ranks", rows.slice(0, 5).map(line), rows.length > 5 && h("li.dim", t("ranks.more", {n: num(rows.length - 5)})))]
		}))
	}

	function attention() {
		const item = (kind, sign, text, help) => h("li", {"data-kind": kind}, sign, h("p", text), help)
		const open = name => h("a.btn", {href: shell.link(name)}, t("do.open"))
		const reset = key => act(t("keys.reset"), {name: key.name}, async () => {
			await call("/admin/health/reset", {body: {target: key.name}})
			await readRest()
		})
		const bad = providers.flatMap(one => one.keys).filter(key => !["ok", "disabled"].includes(key.state))
		// The limits of a team are listed with each of its clients.
		const limits = new Map(clients.flatMap(one => one.limits).map(one => [one.owner + one.limit, one]))
		const tight = [...limits.values()].filter(one => one.max && one.used / one.max >= (one.warn_at ?? 0.8))
		fill(alerts, wrong && item("config", stateSign("out"), t("alert.config"), open("config")),
			bad.map(key => item(key.state === "out" ? "refused" : key.state, stateSign(key.state, key.until), [t(`alert.${key.state}`, {key: key.name, t: key.until ? countdown(key.until) : ""}), " ", raw(key.error || key.reason, "dim")], key.state === "out" ? open("providers") : reset(key))),
			tight.map(one => item("budget", stateSign(one.used >= one.max ? "out" : "limited"), t("alert.budget", {owner: one.owner.replace(/^\w+:/, ""), limit: one.limit, share: num((one.used / one.max) * 100)}), open("keys"))))
	}

	shell.on("health", data => {
		for (const key of data.keys) for (const one of providers) one.keys = one.keys.map(old => (old.name === key.name ? {...old, ...key} : old))
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
	const update = () => {
		showTools()
		read()
		readRest()
	}
	update()
	return {head: [h("div.tools", range, chips)], body, refresh: update, update}
}

// The change against the range before: relative, or of a share in points.
function change(here, before, share) {
	if (here == null || !before) return NONE
	const by = share ? here - before : (here - before) / before
	return h("span", {class: share && (by >= 0 ? "up" : "bad"), title: t("kpi.before")}, `${by >= 0 ? "↑" : "↓"} ${num(Math.abs(by) * 100, share ? 1 : 0)} ${t("unit.percent")}`)
}
