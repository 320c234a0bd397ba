// Routing: routes, pools and targets as a picture; explains where a request would go.
import {dim, fill, h, raw} from "../dom.js"
import {get, post} from "../net.js"
import {act, bar, block, empty, field, keyState, load, none, planSteps, select, square, table, tag, tags} from "../parts.js"
import {NONE, clock, num, percent, t} from "../text.js"
import {PROTOCOLS, WIRES} from "../wire.js"

const sample = name => JSON.stringify(WIRES[name].body("gpt-5", [{role: "user", text: "Hello"}]), null, 2)

/** @type {Page} */
export const open = shell => {
	const picture = h("div.stack")
	const server = h("div")
	const read = () => Promise.all([load(picture, () => get("routes"), draw), load(server, () => get("routing"), overrides)])
	const link = (name, text) => h("a.clip", {href: shell.to({[name]: text})}, raw(text))

	function draw({routes, classifier, models}) {
		if (!routes.length) return empty(t("ro.empty"), "routecodex config check")
		return [block(t("ro.table"), t("hour"), h("div.inner.routes", routes.map(route))), h("div.two.even",
			block(t("ro.classifier"), "", table(t("ro.classifier"), [[t("w.route"), one => tag(raw(one.route))], [t("ro.rule"), one => raw(one.rule), "wrap"]], classifier)),
			block(t("ro.aliases"), "", models.length ? table(t("ro.aliases"), [[t("w.model"), one => raw(one.pattern), "mono"], [t("w.target"), one => raw(one.to), "mono"]], models) : none()))]
	}
	const route = one => h("div.route@route", {"data-route": one.name}, h("b", link("route", one.name)), h("div.stack", one.pools.map(pool)))
	const pool = one => h("div.pool@pool", {class: one.backup && "backup"}, h("p.dim", raw(`${one.id} · ${one.mode}`), one.backup && ` · ${t("ro.backup")}`), one.targets.map(target))
	const target = one => h("div.target@target", {"data-target": one.target, "data-state": one.state}, h("span.line", square(one.target), link("target", one.target)), bar(one.share ?? 0, "c1"), h("span.num", percent(one.share)), h("span.line.wraps", keyState(one), one.weight != null && dim(t("ro.weight", {n: one.weight}))))

	function overrides({routing: set}) {
		const parts = [["sticky", [set.sticky ?? []].flat()], ["allow", set.allow ?? []], ["disable", set.disable ?? []]].filter(([, all]) => all.length)
		return parts.length > 0 && h("ul.alerts.block", h("li.line", h("p", h("b", t("ro.server")), parts.map(([name, all]) => [` ${t(`s.${name}`)}: `, tags(all)])), act(t("w.clear"), {}, async () => {
			await post("routing", {clear: true})
			await read()
		})))
	}

	shell.on("routing", data => fill(server, overrides(data)))
	shell.on("health", read)
	shell.every(30000, read)
	read()
	return {page: [server, picture, explain()], refresh: read}
}

function explain() {
	const result = h("div@explain-result", {"aria-live": "polite"})
	const body = h("textarea.in.mono@explain-body", {rows: 10}, sample("messages"))
	const path = h("input.in.mono", {value: WIRES.gemini.path("gemini-3-pro")})
	const pathField = field(t("ex.path"), path)
	const config = h("textarea.in.mono@explain-config", {rows: 3})
	const gemini = () => protocol.value === "gemini"
	const protocol = select("explain-protocol", PROTOCOLS, "messages", {onchange: () => {
		pathField.hidden = !gemini()
		body.defaultValue = sample(protocol.value)
	}})
	const recent = select("explain-request", [["", t("ex.paste")]], "", {onchange: () => (body.disabled = protocol.disabled = recent.value !== "")})
	get("requests", {limit: 20}).then(found => recent.append(...found.requests.reverse().map(row => h("option", {value: row.request}, `${clock(row.time)} ${row.model} ${row.client ?? ""}`))), () => {})
	const ask = async () => {
		const what = recent.value ? {request: recent.value} : {protocol: protocol.value, body: body.value, ...(gemini() && {path: path.value})}
		const plan = await post("explain", {...what, ...(config.value.trim() && {config: config.value})})
		fill(result, h("p.dim", t("ex.head", {model: plan.model, tokens: num(plan.tokens ?? 0), session: plan.session ?? NONE})), planSteps(plan))
	}
	pathField.hidden = true
	return block(t("ex.title"), "", h("div.inner.two.even", h("div.stack", h("div.cols", field(t("w.protocol"), protocol), field(t("ex.recent"), recent)), pathField, field(t("ex.body"), body), field(t("ex.config"), config), h("div.line.actions", act(t("ex.run"), {kind: "primary", role: "viewer", test: "explain-run"}, ask))), result))
}
