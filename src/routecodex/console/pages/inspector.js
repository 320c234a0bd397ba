// The inspector: what the client sent, what went upstream, and the raw stream; with replay.
import {diffView} from "../diff.js"
import {fill, h, raw} from "../dom.js"
import {ApiError, call, send, session, url} from "../net.js"
import {act, as, block, button, code, copy, empty, failure, select, statusTag, table, target, tr} from "../parts.js"
import {clock, millis, money, t} from "../text.js"

function pretty(text) {
	try {
		return JSON.stringify(JSON.parse(text), null, 2)
	} catch {
		return text ?? ""
	}
}
const pre = text => h("pre.box", {lang: "en", tabindex: 0, translate: "no"}, text)
const folded = headers => h("details", h("summary", t("cap.headers")), pre(Object.entries(headers ?? {}).map(one => one.join(": ")).join("\n")))

// The request as a command, with a placeholder for its key.
function curl({method, path, headers, body}) {
	const quote = text => `'${text.replaceAll("'", "'\\''")}'`
	const sent = Object.entries(headers ?? {}).filter(([name]) => !/^(host|content-length|connection|cookie)$/i.test(name)).map(([name, value]) => {
		if (/^authorization$/i.test(name)) return `-H "${name}: Bearer $KEY"`
		return /api-key$/i.test(name) ? `-H "${name}: $KEY"` : `-H ${quote(`${name}: ${value}`)}`
	})
	return [`curl ${quote(session.me.server.url + path)}`, `-X ${method}`, ...sent, `--data-binary ${quote(body ?? "")}`].join(" \\\n  ")
}

/** @param {Shell} shell @returns {View} */
export function open(shell) {
	const page = h("div.page")
	let stop = new AbortController()

	async function read() {
		stop.abort()
		stop = new AbortController()
		const id = shell.q("id")
		const path = `/admin/requests/${encodeURIComponent(id)}`
		const off = session.me.capture === "off" && h("div", {test: "capture-off"}, empty(t("cap.off"), '[capture]\nmode = "all"'))
		try {
			if (!id) return fill(page, off, choice(await call(url("/admin/requests", {limit: 40}))))
			const [{request: row}, found] = await Promise.all([call(url(path)), call(url(`${path}/capture`)).catch(error => error)])
			const head = h("div.line", statusTag(row), h("a.mono.link", {href: shell.link("requests", {id})}, id), h("span.dim", clock(row.time)), raw(row.client), raw(row.model, "sub"), h("b", target(row.target)))
			fill(page, head, found instanceof ApiError ? off || (found.status === 404 ? empty(t("cap.none")) : failure(found, read)) : [show(found), replay(path, found.client)])
		} catch (error) {
			fill(page, failure(error, error.status !== 404 && read))
		}
	}

	// The latest requests to choose from.
	function choice(found) {
		const link = (row, text) => h("a", {href: shell.link("inspector", {id: row.request})}, text)
		const line = row => tr({}, as("mono dim", link(row, clock(row.time))), statusTag(row), as("hide-s clip", raw(row.client)), as("clip", link(row, raw(row.model))), as("clip hide-s", target(row.target)), as("num", money(row.cost)))
		return block(t("cap.choose"), "", table(t("cap.choose"), null, found.requests.reverse().map(line)))
	}

	function show({client, upstream}) {
		const last = upstream.at(-1)
		const frames = last?.frames ?? []
		const inner = (test, ...kids) => h("div.inner.form", {test}, kids)
		return [h("div.two.even", block(t("cap.client"), button(t("cap.curl"), {onclick: () => copy(curl(client))}), inner("capture-client", h("p.mono", `${client.method} ${client.path}`), folded(client.headers), pre(pretty(client.body)))),
			block(t("cap.upstream"), "", inner("capture-upstream", upstream.map(one => [h("p.line", code(one.status), target(one.target)), folded(one.headers), pre(pretty(one.body))])))),
		block(t("cap.diff"), "", inner("capture-diff", diffView(pretty(client.body), pretty(last?.body)))),
		h("div.two.even", block(t("cap.frames"), t("cap.frames_n", {n: frames.length}), h("ol.inner.frames.code", {test: "capture-frames", lang: "en"}, frames.slice(0, 2000).map(one => h("li", h("span.dim.num", millis(one.ms)), h("span", one.data))))), block(t("cap.answer"), "", inner(null, pre(pretty(client.response)))))]
	}

	function replay(path, client) {
		const kind = select("replay-kind", [["target", t("f.target")], ["model", t("f.model")]], "target", {label: t("cap.replay_kind")})
		const goal = h("input.in.mono", {test: "replay-target", label: t("cap.replay_to"), placeholder: "glm.glm-4.7"})
		const answer = pre("")
		const again = act(t("cap.run"), {kind: "primary", role: "admin", test: "replay-run"}, async () => {
			fill(answer)
			const reply = await send(`${path}/replay`, {body: {[kind.value]: goal.value.trim()}, signal: stop.signal})
			for await (const text of reply.body.pipeThrough(new TextDecoderStream())) answer.append(text)
		})
		return block(t("cap.replay"), t("cap.replay_note"), h("div.inner.form", h("div.inputs", kind, goal, again), h("div.two.even", h("div", h("h3", t("cap.before")), pre(client.response)), h("div", h("h3", t("cap.again")), answer))))
	}

	read()
	return {body: h("div.body.scroll", page), update: read, close: () => stop.abort()}
}
