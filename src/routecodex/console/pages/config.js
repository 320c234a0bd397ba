// The configuration: the file with its problems, the value of every key, a text to check.
import {diffView} from "../diff.js"
import {CODE, dim, fill, h, raw} from "../dom.js"
import {get, post} from "../net.js"
import {act, block, empty, load, search, table, tag} from "../parts.js"
import {t} from "../text.js"

const MOST = 400

/** @type {Page} */
export const open = shell => {
	const [top, file, checked, values] = [h("div"), h("div"), h("div.stack", {"aria-live": "polite"}), h("div")]
	const draft = h("textarea.in.mono@config-draft", {rows: 16, label: t("cf.draft")})
	let text = ""
	let effective = []

	const read = () => load(file, () => get("config"), found => {
		effective = found.effective
		draft.defaultValue = text = found.text
		showValues()
		fill(top, found.changed && block(t("cf.changed"), "", found.changes.length > 0 && table(t("cf.changed"), changes, found.changes, () => ({"data-testid": "config-change"}))))
		return block([t("cf.file"), h("small.mono", raw(found.path ?? ""))], reload, found.problems.length > 0 && h("ul.inner.stack", found.problems.map(problem)), lined(found))
	})
	const reload = act(t("w.reload"), {role: "admin", test: "config-reload"}, async () => {
		const found = await post("reload", {})
		await read()
		if (!found.reloaded) throw new Error(t("cf.not_reloaded"))
	})
	const problem = one => h("li.note@config-problem", {class: one.severity === "error" && "err", "data-line": one.line ?? ""}, h("b", one.line && `${t("cf.line", {n: one.line})} `, raw(one.path)), " ", raw(one.message), one.fix && [" · ", raw(one.fix)])

	function lined({text: lines, problems}) {
		const marks = new Map(problems.map(one => [one.line, one.severity === "error" ? "wrong" : "unsure"]))
		return h("div.inner", h("div.code.box.lined@config-text", {...CODE, role: "region", label: t("cf.file")}, lines.split("\n").map((line, n) => [h("span.n", {class: marks.get(n + 1), "aria-hidden": "true"}, n + 1), h("span", {class: marks.get(n + 1)}, line || " ")])))
	}

	const show = value => (typeof value === "string" ? value : JSON.stringify(value))
	const changes = [["cf.key", "key"], ["cf.effective", "running"], ["cf.file", "file"]].map(([text, name]) => [t(text), one => raw(show(one[name])), "mono wrap"])

	function showValues() {
		const wanted = shell.q("q").toLowerCase()
		const rows = effective.filter(one => `${one.key} ${show(one.value)} ${one.source}`.toLowerCase().includes(wanted))
		const columns = [
			[t("cf.key"), one => raw(one.key), "mono wrap"],
			[t("cf.value"), one => raw(show(one.value)), "mono wrap"],
			[t("cf.source"), one => [tag(raw(one.source), one.source === "file" && "acc"), one.line && dim(` ${t("cf.line", {n: one.line})}`)]],
		]
		fill(values, rows.length ? table(t("cf.effective"), columns, rows.slice(0, MOST), one => ({"data-testid": "config-key", "data-key": one.key, "data-source": one.source})) : empty(t("no_match")), rows.length > MOST && h("p.pad.dim", t("more", {n: rows.length - MOST})))
	}

	const check = act(t("cf.check"), {kind: "primary", role: "viewer", test: "config-check"}, async () => {
		const {problems} = await post("config/check", {text: draft.value})
		fill(checked, problems.length ? h("ul.stack", problems.map(problem)) : h("p.up", t("cf.fine")), draft.value !== text && diffView(text, draft.value))
	})
	shell.on("config", read)
	read()
	return {
		page: [top, file, block(t("cf.draft"), t("cf.draft_note"), h("div.inner.stack", draft, h("div.line.actions", check), checked)), block(t("cf.effective"), search(shell, t("w.search")), values)],
		refresh: read,
		update: showValues,
	}
}
