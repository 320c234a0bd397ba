// Clients and teams: keys, limits and how much of each window is used.
import {dim, fill, h, raw} from "../dom.js"
import {get, may, post} from "../net.js"
import {act, bar, block, button, confirm, copy, dialog, empty, field, load, run, select, table, tag, tags} from "../parts.js"
import {NONE, ago, money, num, relative, t} from "../text.js"

const list = text => text.split(/[\n;]+/).map(one => one.trim()).filter(Boolean)

function limit(one) {
	const share = one.max ? (one.used + (one.reserved ?? 0)) / one.max : 0
	const amount = value => (one.unit === "usd" ? money(value, 2) : num(value))
	return h("div.limit", {title: one.resets_at && t("cl.resets", {at: relative(one.resets_at)})}, h("span.clip", raw(one.limit), one.owner.startsWith("team:") && dim(` ${t("w.team")}`)), bar(share, share >= 1 ? "cbad" : share >= (one.warn_at ?? 0.8) ? "cwarn" : "c1"), h("span.dim.nw", t("cl.used", {used: amount(one.used), left: amount(Math.max(0, one.remaining))})))
}
const limits = one => (one.limits.length ? one.limits.map(limit) : dim(t("cl.no_limit")))

/** @type {Page} */
export const open = shell => {
	const [secret, clients, teams] = [h("div"), h("div"), h("div")]
	const link = (name, value) => h("a", {href: shell.to({[name]: value})}, raw(value))
	const columns = [
		[t("w.client"), one => [link("client", one.name), " ", one.team && tag(raw(one.team)), " ", one.blocked && tag(t("cl.blocked"), "bad"), " ", one.source === "file" && tag(t("cl.file"))]],
		[t("w.key"), one => raw(one.keys?.map(key => (key.prefix ? `${key.prefix}…` : NONE)).join(" ")), "mono dim hide-s"],
		[t("cl.limits"), limits],
		[t("cl.role"), one => raw(one.role || NONE), "hide-s"],
		[t("cl.last"), one => ago(one.last_used_at), "num dim hide-s"],
		["", one => may("admin") && controls(one)],
	]
	const teamColumns = [[t("w.team"), one => link("team", one.name)], [t("cl.title"), one => tags(one.members), "wrap"], [t("cl.limits"), limits]]
	const read = () => Promise.all([
		load(clients, () => get("clients"), ({clients: all}) => (all.length ? block(t("cl.title"), num(all.length), table(t("cl.title"), columns, all, one => ({class: "card", "data-testid": "client-row", "data-client": one.name}))) : empty(t("cl.empty"), "routecodex keys add laptop --limit '$20/day'"))),
		load(teams, () => get("teams"), ({teams: all}) => all.length > 0 && block(t("cl.teams"), "", table(t("cl.teams"), teamColumns, all, () => ({class: "card"})))),
	])

	function controls(one) {
		const path = `clients/${encodeURIComponent(one.name)}`
		const disabled = one.source === "file"
		const control = (verb, work, test = verb) => act(t(`w.${verb}`), {kind: "quiet", disabled, name: one.name, test: `client-${test}`}, work)
		const write = (end, body = {}) => post(path + end, body).finally(read)
		const ask = verb => confirm(t(`cl.${verb}_ask`, {name: one.name}), t(`w.${verb}`))
		return h("div.line.actions",
			button(t("w.edit"), {kind: "quiet", disabled, test: "client-edit", label: `${t("w.edit")} ${one.name}`, onclick: () => edit(one)}),
			control(one.blocked ? "unblock" : "block", () => write("", {blocked: !one.blocked}), "block"),
			control("rotate", async () => (await ask("rotate")) && showSecret(one.name, (await write("/rotate", {overlap: "24h"})).key)),
			control("revoke", async () => (await ask("revoke")) && write("/revoke")))
	}

	function showSecret(name, key) {
		fill(secret, h("div.line.wraps.secret", h("span", t("cl.once", {name})), h("code@client-key", key), button(t("w.copy"), {onclick: () => copy(key)}), button(t("w.close"), {kind: "quiet", onclick: () => fill(secret)})))
		secret.scrollIntoView()
	}

	// Asks for the settings of a new client, or for those of one that is there.
	function edit(one) {
		const own = one?.limits.filter(each => !each.owner.startsWith("team:")).map(each => each.limit) ?? []
		const name = h("input.in.mono@client-name", {required: true, pattern: "[A-Za-z0-9_.\\-]{1,64}", autofocus: true})
		const team = h("input.in.mono@client-team")
		const box = h("textarea.in.mono@client-limit", {placeholder: "$20/day\n100 requests/hour"}, own.join("\n"))
		const role = select("client-role", ["", "viewer", "operator"].map(each => [each, each || NONE]), one?.role ?? "")
		const title = one?.name ?? t("cl.new")
		const save = async () => {
			const body = {limits: list(box.value), role: role.value}
			if (one) return post(`clients/${encodeURIComponent(one.name)}`, body)
			const found = await post("clients", {name: name.value.trim(), ...(team.value && {team: team.value.trim()}), ...body})
			showSecret(found.client.name, found.key)
		}
		const onsubmit = async event => {
			event.preventDefault()
			if (!(await run(event.submitter, save, title))) return
			node.close()
			read()
		}
		const node = dialog(title, h("form.stack", {onsubmit}, !one && h("div.cols", field(t("cl.name"), name), field(t("w.team"), team)), field(t("cl.limits"), box), field(t("cl.role"), role),
			h("div.line.actions", button(t("w.cancel"), {onclick: () => node.close()}), h("button.btn.primary@client-create", t("w.save")))))
	}

	shell.every(15000, () => clients.contains(document.activeElement) || read())
	read()
	return {head: h("div.tools", button(t("cl.new"), {icon: "plus", role: "admin", test: "client-new", onclick: () => edit()})), page: [secret, clients, teams], refresh: read}
}
