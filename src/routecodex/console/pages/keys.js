// Clients and teams: keys, limits and how much of each window is used.
import {fill, h, raw} from "../dom.js"
import {call, url} from "../net.js"
import {act, as, bar, block, button, confirm, copy, dialog, empty, field, load, run, select, table, tag, tr} from "../parts.js"
import {NONE, ago, money, num, relative, t} from "../text.js"

const list = text => text.split(/[\n;]+/).map(one => one.trim()).filter(Boolean)
const roles = (test, value) => select(test, ["", "viewer", "operator"].map(name => [name, name ? t(`role.${name}`) : NONE]), value)

function limit(one) {
	const share = one.max ? (one.used + (one.reserved ?? 0)) / one.max : 0
	const amount = value => (one.unit === "usd" ? money(value, 2) : num(value))
	return h("div.limit", {title: one.resets_at && t("cl.resets", {at: relative(one.resets_at)})}, h("span.clip", raw(one.limit), one.owner.startsWith("team:") && h("span.dim", ` ${t("f.team")}`)), bar(share, share >= 1 ? "cbad" : share >= (one.warn_at ?? 0.8) ? "cwarn" : "c1"), h("span.dim.nw", t("cl.used", {used: amount(one.used), left: amount(Math.max(0, one.remaining))})))
}

/** @param {Shell} shell @returns {View} */
export function open(shell) {
	const [secret, clients, teams] = [h("div"), h("div"), h("div")]
	const page = h("div.page", secret, clients, teams)
	const team = one => tr({}, h("a", {href: shell.link("requests", {team: one.name})}, raw(one.name)), as("wrap", one.members.map(name => [tag(raw(name)), " "])), h("div.limits", one.limits.map(limit)))
	const heads = [t("f.client"), as("hide-s", t("keys.key")), t("cl.limits"), as("hide-s", t("cl.role")), as("num hide-s", t("cl.last")), h("span.sr", t("keys.actions"))]
	const read = () => Promise.all([
		load(clients, () => call(url("/admin/clients")), found => (found.clients.length ? block(t("cl.title"), num(found.clients.length), table(t("cl.title"), heads, found.clients.map(clientRow))) : empty(t("cl.empty"), "routecodex keys add laptop --limit '$20/day'"))),
		load(teams, () => call(url("/admin/teams")), found => found.teams.length > 0 && block(t("cl.teams"), "", table(t("cl.teams"), [t("f.team"), t("cl.members"), t("cl.limits")], found.teams.map(team))))
	])

	function clientRow(one) {
		const path = `/admin/clients/${encodeURIComponent(one.name)}`
		const control = (verb, work, test = verb) => act(t(`cl.${verb}`), {kind: "quiet", role: "admin", disabled: one.source === "file", name: one.name, test: `client-${test}`}, work)
		const post = (end, body = {}) => call(path + end, {body}).finally(read)
		// A refused question ends the write without a toast.
		const sure = async verb => {
			if (!(await confirm(t(`cl.${verb}_ask`, {name: one.name}), t(`cl.${verb}`)))) throw new Error("")
		}
		const verb = one.blocked ? "unblock" : "block"
		return tr({test: "client-row", "data-client": one.name}, [h("a", {href: shell.link("requests", {client: one.name})}, raw(one.name)), " ", one.team && tag(raw(one.team)), " ", one.blocked && tag(t("cl.blocked"), "bad"), " ", one.source === "file" && tag(t("cl.file"))],
			as("mono dim hide-s", one.keys?.map(key => (key.prefix ? `${key.prefix}…` : NONE)).join(" ")), h("div.limits", one.limits.length ? one.limits.map(limit) : h("span.dim", t("cl.no_limit"))), as("hide-s", one.role ? t(`role.${one.role}`) : NONE), as("num dim hide-s", ago(one.last_used_at)),
			h("div.acts", button(t("cl.edit"), {kind: "quiet", role: "admin", disabled: one.source === "file", test: "client-edit", label: `${t("cl.edit")} ${one.name}`, onclick: () => edit(one, path)}), control(verb, () => post("", {blocked: !one.blocked}), "block"), control("rotate", async () => {
				await sure("rotate")
				showSecret(one.name, (await post("/rotate", {overlap: "24h"})).key)
			}), control("revoke", async () => {
				await sure("revoke")
				await post("/revoke")
			})))
	}

	function showSecret(name, key) {
		fill(secret, h("div.secret", h("span", t("cl.once", {name})), h("code", {test: "client-key"}, key), button(t("do.copy"), {onclick: () => copy(key)}), button(t("do.close"), {kind: "quiet", onclick: () => fill(secret)})))
		secret.scrollIntoView()
	}

	// A dialog with a form; `send` posts what it holds.
	function form(title, parts, test, send) {
		const onsubmit = async event => {
			event.preventDefault()
			if (!(await run(event.submitter, send, t("done", {what: title})))) return
			node.close()
			read()
		}
		const node = dialog(title, h("form", {onsubmit}, parts, h("div.actions", button(t("do.cancel"), {onclick: () => node.close()}), h("button.btn.primary", {test}, t("do.save")))))
	}

	function edit(one, path) {
		const own = one.limits.filter(each => !each.owner.startsWith("team:")).map(each => each.limit)
		const limits = h("textarea.in.mono", {test: "edit-limits", value: own.join("\n")})
		const role = roles("edit-role", one.role)
		const together = h("input.in", {type: "number", min: 1, value: one.concurrent ?? ""})
		const reset = act(t("cl.reset"), {kind: "quiet", role: "admin"}, () => call(`${path}/reset`, {body: {}}).finally(read))
		form(one.name, [field(t("cl.limits"), limits, t("cl.limits_note")), h("div.cols", field(t("cl.role"), role), field(t("cl.concurrent"), together)), reset], "edit-save", () => call(path, {body: {limits: list(limits.value), role: role.value, ...(together.value && {concurrent: Number(together.value)})}}))
	}

	function create() {
		const name = h("input.in.mono", {test: "client-name", required: true, pattern: "[A-Za-z0-9_.\\-]{1,64}", autofocus: true})
		const group = h("input.in.mono", {test: "client-team"})
		const limits = h("input.in.mono", {test: "client-limit", placeholder: "$20/day"})
		const role = roles("client-role", "")
		form(t("cl.new"), [h("div.cols", field(t("cl.name"), name), field(t("f.team"), group)), h("div.cols", field(t("cl.limits"), limits), field(t("cl.role"), role))], "client-create", async () => {
			const found = await call("/admin/clients", {body: {name: name.value.trim(), limits: list(limits.value), ...(group.value && {team: group.value.trim()}), ...(role.value && {role: role.value})}})
			showSecret(found.client.name, found.key)
		})
	}

	shell.every(15000, () => page.contains(document.activeElement) || read())
	read()
	return {head: [h("div.tools", button(t("cl.new"), {icon: "plus", role: "admin", test: "client-new", onclick: create}))], body: h("div.body.scroll", page), refresh: read}
}
