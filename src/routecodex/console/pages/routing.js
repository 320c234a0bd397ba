// Routing: routes, pools and targets as a picture; explains where a request would go.
import {fill, h, raw} from "../dom.js"
import {call, url} from "../net.js"
import {act, as, bar, block, empty, field, load, notices, planSteps, select, square, stateSign, table, tag, tr} from "../parts.js"
import {NONE, clock, num, percent, t} from "../text.js"
import {WIRES} from "../wire.js"

const sample = name => JSON.stringify(WIRES[name].body("gpt-5", [{role: "user", text: "Hello"}]), null, 2)

/** @param {Shell} shell @returns {View} */
export function open(shell) {
	const picture = h("div.form")
	const server = h("div")
	const read = () => Promise.all([load(picture, () => call(url("/admin/routes")), draw), load(server, () => call(url("/admin/routing")), found => overrides(found.routing))])

	function draw(found) {
		if (!found.routes.length) return empty(t("ro.empty"), "routecodex config check")
		const two = (label, heads, rows) => block(label, "", rows.length ? table(label, heads.map(name => t(name)), rows) : h("p.inner.dim", NONE))
		return [block(t("ro.table"), t("ro.share"), h("div.routes", found.routes.map(route))),
			h("div.two.even", two(t("ro.classifier"), ["f.route", "ro.rule"], found.classifier.map(one => tr({}, tag(raw(one.route)), as("wrap", raw(one.rule))))), two(t("ro.aliases"), ["f.model", "ro.to"], found.models.map(one => tr({}, as("mono", raw(one.pattern)), as("mono", raw(one.to))))))]
	}
	const route = one => h("div.route", {test: "route", "data-route": one.name}, h("a", {href: shell.link("requests", {route: one.name})}, h("b", raw(one.name))), h("div.pools", one.pools.map(pool)))
	const pool = one => h("div.pool", {class: one.backup && "backup", test: "pool"}, h("p.dim", raw(`${one.id} · ${one.mode}`), one.backup && ` · ${t("ro.backup")}`), one.targets.map(target))
	const target = one => h("div.target", {test: "target", "data-target": one.target, "data-state": one.state}, h("span", square(one.target), h("a.clip", {href: shell.link("requests", {target: one.target})}, raw(one.target))), bar(one.share ?? 0, "c1"), h("span.num", percent(one.share)), h("span.state", stateSign(one.state), t(`st.${one.state}`), one.weight != null && h("span.dim", t("ro.weight", {n: one.weight}))))

	function overrides(set) {
		const parts = [["sticky", set.sticky ? [set.sticky] : []], ["allow", set.allow ?? []], ["disable", set.disable ?? []]].filter(([, all]) => all.length)
		return parts.length > 0 && h("ul.alerts", h("li", h("p", h("b", t("ro.server")), parts.map(([name, all]) => [` ${t(`s.${name}`)}: `, all.map(one => tag(raw(one), name === "disable" ? "bad" : "acc"))])), act(t("s.clear"), {}, async () => {
			await call("/admin/routing", {body: {clear: true}})
			await read()
		})))
	}

	shell.on("routing", data => fill(server, overrides(data.routing)))
	shell.on("health", read)
	shell.every(30000, read)
	read()
	return {body: h("div.body.scroll", h("div.page", server, picture, explain())), refresh: read}
}

// The form that explains a request.
function explain() {
	const result = h("div", {test: "explain-result", "aria-live": "polite"})
	const body = h("textarea.in.mono", {test: "explain-body", rows: 10, spellcheck: "false", value: sample("messages"), oninput: () => (typed = true)})
	const path = field(t("ex.path"), h("input.in.mono", {value: WIRES.gemini.path("gemini-3-pro")}))
	const config = h("textarea.in.mono", {test: "explain-config", rows: 6, spellcheck: "false"})
	let typed = false
	path.hidden = true
	const protocol = select("explain-protocol", Object.keys(WIRES).map(name => [name, t(`api.${name}`)]), "messages", {onchange: () => {
		path.hidden = protocol.value !== "gemini"
		if (!typed) body.value = sample(protocol.value)
	}})
	const recent = select("explain-request", [["", t("ex.paste")]], "", {onchange: () => (body.disabled = protocol.disabled = recent.value !== "")})
	call(url("/admin/requests", {limit: 20})).then(found => recent.append(...found.requests.reverse().map(row => h("option", {value: row.request}, `${clock(row.time)} ${row.model} ${row.client ?? ""}`))), () => {})
	const ask = async () => {
		const what = recent.value ? {request: recent.value} : {protocol: protocol.value, body: body.value, ...(!path.hidden && {path: path.lastChild.value})}
		const plan = await call("/admin/explain", {body: {...what, ...(config.value.trim() && {config: config.value})}})
		fill(result, h("p.dim", t("ex.head", {model: plan.model, tokens: num(plan.tokens ?? 0), session: plan.session ?? NONE})), planSteps(plan), plan.notices?.length > 0 && notices(plan.notices))
	}
	return block(t("ex.title"), "", h("div.inner.two.even", h("div.form", h("div.cols", field(t("f.protocol"), protocol), field(t("ex.recent"), recent)), path, field(t("ex.body"), body), h("details", h("summary", t("ex.what_if")), field(t("ex.config"), config)), h("div.actions", act(t("ex.run"), {kind: "primary", role: "viewer", test: "explain-run"}, ask))), result))
}
