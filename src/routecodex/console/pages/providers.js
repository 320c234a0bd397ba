// The providers: keys with health and quota, and what an operator can do about them.
import {fill, h, raw} from "../dom.js"
import {call, url} from "../net.js"
import {act, as, bar, block, empty, keyState, load, square, stateSign, table, tag, tr} from "../parts.js"
import {sparkline} from "../plot.js"
import {clock, millis, money, now, num, percent, relative, seconds, t} from "../text.js"

/** @param {Shell} shell @returns {View} */
export function open(shell) {
	let providers = []
	let delays = {}
	// Changes of state since the page was opened, and results of tests, by key.
	const history = new Map()
	const results = new Map()
	const page = h("div.page")

	const read = () => load(page, async () => {
		const series = url("/admin/series", {since: new Date(now() - 36e5).toISOString(), until: new Date(now()).toISOString(), step: 60, by: "provider"})
		const [found, fine] = await Promise.all([call(url("/admin/providers")), call(series).catch(() => ({series: []}))])
		delays = Object.fromEntries(fine.series.map(one => [one.name, one.points.map(point => point.first_byte_p50)]))
		return found.providers
	}, found => {
		providers = found
		providers.flatMap(one => one.keys).forEach(remember)
		return draw()
	})

	function remember(key) {
		const states = history.get(key.name) ?? []
		if (states.at(-1)?.state !== key.state) history.set(key.name, [...states, {state: key.state, at: now()}].slice(-8))
	}

	const draw = () => (providers.length ? providers.map(provider) : empty(t("pr.empty"), "routecodex init"))
	const redraw = () => page.contains(document.activeElement) || fill(page, draw())

	function provider(one) {
		const models = one.models.slice(0, 6).map(model => h("a", {href: shell.link("requests", {provider: one.name, model})}, tag(raw(model))))
		const name = [square(one.name), h("a", {href: shell.link("requests", {provider: one.name})}, raw(one.name)), h("small", models, one.models.length > 6 && t("ranks.more", {n: one.models.length - 6}))]
		const heads = [t("keys.key"), t("keys.state"), as("num hide-s", t("kpi.requests")), as("num hide-s", t("kpi.errors")), as("num hide-s", t("col.first")), as("hide-s", t("keys.quota")), as("num hide-s", t("col.cost")), h("span.sr", t("keys.actions"))]
		return block(name, [delays[one.name] && [h("span.hide-s", t("col.first")), sparkline(delays[one.name], "c4")], tag(raw(one.protocol))], table(one.name, heads, one.keys.flatMap(keyRows)))
	}

	function keyRows(key) {
		const off = key.state === "disabled"
		const control = (verb, path, body, props) => act(t(`keys.${verb}`), {kind: "quiet", test: `key-${verb}`, name: key.name, ...props}, async () => {
			const found = await call(path, {body})
			if (verb === "test") results.set(key.name, found)
			await read()
		})
		const [why, result, states] = [key.error || key.reason, results.get(key.name), history.get(key.name) ?? []]
		const past = states.length > 1 && h("span.hist", {title: states.map(one => `${clock(one.at)} ${t(`st.${one.state}`)}`).join("\n")}, states.map(one => stateSign(one.state === "cooling" ? "half_open" : one.state)))
		const outcome = result && h("span", {test: "test-result", "data-ok": String(result.ok), class: result.ok ? "up" : "bad"}, result.ok ? [t("keys.works"), " ", millis(result.first_byte_ms), " / ", millis(result.total_ms)] : [t("keys.fails"), " ", raw(result.error ?? `HTTP ${result.status}`)])
		return [tr({test: "key-row", "data-key": key.name, "data-state": key.state}, as("mono", raw(key.name)), [keyState(key), past], as("num hide-s", num(key.requests)), as("num hide-s", percent(key.requests ? key.errors / key.requests : null)), as("num hide-s", seconds(key.first_byte_p50)), as("hide-s", quota(key)), as("num hide-s", money(key.cost)),
			h("div.acts", control("test", "/admin/providers/test", {target: key.name}), control("reset", "/admin/health/reset", {target: key.name}, {disabled: key.state === "ok" || off}), off ? control("enable", "/admin/routing", {enable: [key.name]}) : control("disable", "/admin/routing", {disable: [key.name]}))),
		(why || result || off) && tr({}, as("wrap sub", [why && raw(why), off && key.disabled_by && t("keys.disabled_by", {name: key.disabled_by}), " ", outcome], {colspan: 8}))]
	}

	const quota = key => (key.quota?.length ? h("span.quota", key.quota.map(one => h("span", {title: t("keys.quota_of", {left: num(one.remaining), limit: num(one.limit), at: one.resets_at ? relative(one.resets_at) : ""})}, bar(one.remaining / one.limit, one.remaining / one.limit < 0.1 ? "cbad" : "c7"), percent(one.remaining / one.limit), " ", raw(one.kind, "dim")))) : h("span.dim", t("keys.no_quota")))

	shell.on("health", data => {
		for (const key of data.keys) {
			remember(key)
			for (const one of providers) one.keys = one.keys.map(old => (old.name === key.name ? {...old, ...key} : old))
		}
		redraw()
	})
	shell.every(1000, () => page.querySelector("[data-state=cooling]") && redraw())
	shell.every(30000, read)
	read()
	return {body: h("div.body.scroll", page), refresh: read, update: read}
}
