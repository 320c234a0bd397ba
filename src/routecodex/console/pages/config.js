// The configuration: the file with its problems, the value of every key, and a text to check. It never writes the file.
import {diffView} from "../diff.js"
import {fill, h, raw} from "../dom.js"
import {call, url} from "../net.js"
import {act, as, block, button, empty, load, search, table, tag, tr} from "../parts.js"
import {t} from "../text.js"

const MOST = 400

/** @param {Shell} shell @returns {View} */
export function open(shell) {
	const top = h("div")
	const file = h("div")
	const checked = h("div.form", {"aria-live": "polite"})
	const values = h("div")
	const draft = h("textarea.in.mono", {test: "config-draft", rows: 16, spellcheck: "false", label: t("cf.draft")})
	let text = ""
	let effective = []

	const read = () => load(file, () => call(url("/admin/config")), found => {
		effective = found.effective
		if (draft.value === text) draft.value = found.text
		text = found.text
		showValues()
		fill(top, found.changed && h("ul.alerts", h("li", h("p", t("cf.changed")))))
		return block([t("cf.file"), h("small.mono", raw(found.path ?? ""))], reload, found.problems.length > 0 && h("ul.inner.form", found.problems.map(problem)), lined(found))
	})
	const reload = act(t("cf.reload"), {role: "admin", test: "config-reload"}, async () => {
		const found = await call("/admin/reload", {body: {}})
		await read()
		if (!found.reloaded) throw new Error(t("cf.not_reloaded"))
	})
	const problem = one => h("li.note", {class: one.severity === "error" && "err", test: "config-problem", "data-line": one.line ?? ""}, h("b", one.line && `${t("cf.line", {n: one.line})} `, raw(one.path)), " ", raw(one.message), one.fix && [" · ", raw(one.fix)])

	function lined(found) {
		const marks = new Map(found.problems.map(one => [one.line, one.severity === "error" ? "wrong" : "unsure"]))
		return h("div.inner", h("div.code.box.lined", {test: "config-text", tabindex: 0, role: "region", label: t("cf.file"), lang: "en"}, found.text.split("\n").map((line, n) => [h("span.n", {class: marks.get(n + 1), "aria-hidden": "true"}, n + 1), h("span", {class: marks.get(n + 1)}, line || " ")])))
	}

	function showValues() {
		const wanted = shell.q("q").toLowerCase()
		const show = value => (typeof value === "string" ? value : JSON.stringify(value))
		const rows = effective.filter(one => `${one.key} ${show(one.value)} ${one.source}`.toLowerCase().includes(wanted))
		const line = one => tr({test: "config-key", "data-key": one.key, "data-source": one.source}, as("mono", raw(one.key)), as("mono wrap", raw(show(one.value))), [tag(t(`src.${one.source}`), one.source === "file" && "acc"), one.line && h("span.dim", ` ${t("cf.line", {n: one.line})}`)])
		fill(values, rows.length ? table(t("cf.effective"), [t("cf.key"), t("cf.value"), t("cf.source")], rows.slice(0, MOST).map(line)) : empty(t("cf.none")), rows.length > MOST && h("p.pad.dim", t("ranks.more", {n: rows.length - MOST})))
	}

	const check = act(t("cf.check"), {kind: "primary", role: "viewer", test: "config-check"}, async () => {
		const {problems} = await call("/admin/config/check", {body: {text: draft.value}})
		fill(checked, problems.length ? h("ul.form", problems.map(problem)) : h("p.up", t("cf.fine")))
	})
	const compare = () => fill(checked, draft.value === text ? h("p.dim", t("cf.same")) : diffView(text, draft.value))
	const page = h("div.page", top, file, block(t("cf.draft"), t("cf.draft_note"), h("div.inner.form", draft, h("div.actions", button(t("cf.show_diff"), {onclick: compare}), check), checked)), block(t("cf.effective"), search(t("cf.search"), shell.q("q"), q => shell.set({q}, true)), values))
	shell.on("config", read)
	read()
	return {body: h("div.body.scroll", page), refresh: read, update: showValues}
}
