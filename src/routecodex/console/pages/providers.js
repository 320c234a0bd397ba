// The providers: keys with health and quota, and what an operator can do about them.
import {fill, h, raw} from "../dom.js"
import {get, post} from "../net.js"
import {act, block, empty, keyState, keyTable, load, square, stateSign, tag, updateKeys} from "../parts.js"
import {sparkline} from "../plot.js"
import {clock, iso, millis, now, t} from "../text.js"

/** @type {Page} */
export const open = shell => {
	let providers = []
	let delays = {}
	// Changes of state since the page was opened, and results of tests, by key.
	const history = new Map()
	const results = new Map()
	const list = h("div.stack")

	const read = () => load(list, async () => {
		const hour = {since: iso(now() - 36e5), until: iso(now()), step: 60, by: "provider"}
		const [found, {series}] = await Promise.all([get("providers"), get("series", hour).catch(() => ({series: []}))])
		delays = Object.fromEntries(series.map(one => [one.name, one.points.map(point => point.first_byte_p50)]))
		providers = found.providers
		providers.flatMap(one => one.keys).forEach(remember)
	}, draw)

	function remember(key) {
		const states = history.get(key.name) ?? []
		if (states.at(-1)?.state !== key.state) history.set(key.name, [...states, {state: key.state, at: now()}].slice(-8))
	}

	function draw() {
		return providers.length ? providers.map(provider) : empty(t("pr.empty"), "routecodex init")
	}
	const redraw = () => list.contains(document.activeElement) || fill(list, draw())

	function provider({name, protocol, models, keys}) {
		const link = (text, more) => h("a", {href: shell.to({provider: name, ...more})}, text)
		const title = [square(name), link(raw(name)), h("small", models.slice(0, 6).map(model => link(tag(raw(model)), {model})), models.length > 6 && t("more", {n: models.length - 6}))]
		return block(title, [delays[name] && [h("span.hide-s", t("w.first")), sparkline(delays[name], "c4")], tag(raw(protocol))], keyTable(shell, keys, state, [["", controls]]))
	}

	function state(key) {
		const states = history.get(key.name) ?? []
		const past = states.length > 1 && h("span.hist", {title: states.map(one => `${clock(one.at)} ${t(`st.${one.state}`)}`).join("\n")}, states.map(one => stateSign(one.state === "cooling" ? "half_open" : one.state)))
		const result = results.get(key.name)
		const outcome = result && h("p@test-result", {"data-ok": String(result.ok), class: result.ok ? "up" : "bad"}, result.ok ? [t("keys.works"), " ", millis(result.first_byte_ms), " / ", millis(result.total_ms)] : [t("w.failed"), " ", raw(result.error ?? `HTTP ${result.status}`)])
		return [keyState(key), past, h("div.small.why", raw(key.error || key.reason), key.state === "disabled" && key.disabled_by && t("keys.disabled_by", {name: key.disabled_by}), outcome)]
	}

	function controls(key) {
		const control = (verb, path, body, props) => act(t(`w.${verb}`), {kind: "quiet", test: `key-${verb}`, name: key.name, ...props}, async () => {
			const found = await post(path, body)
			if (verb === "test") results.set(key.name, found)
			await read()
		})
		const off = key.state === "disabled"
		const verb = off ? "enable" : "disable"
		return h("div.line.actions", control("test", "providers/test", {target: key.name}), control("reset", "health/reset", {target: key.name}, {disabled: off || key.state === "ok"}), control(verb, "routing", {[verb]: [key.name]}))
	}

	shell.on("health", data => {
		data.keys.forEach(remember)
		updateKeys(providers, data.keys)
		redraw()
	})
	shell.every(1000, () => list.querySelector("[data-state=cooling]") && redraw())
	shell.every(30000, read)
	read()
	return {page: list, refresh: polled => (polled && list.contains(document.activeElement)) || read()}
}
