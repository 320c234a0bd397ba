// The inspector: what the client sent, what went upstream, and the raw stream; with replay.
import {diffView} from "../diff.js"
import {CODE, dim, fill, h, raw} from "../dom.js"
import {get, may, send, session, url} from "../net.js"
import {act, block, button, code, copy, empty, failure, load, pre, requestTable, select, statusTag, target} from "../parts.js"
import {millis, num, t, time} from "../text.js"

const MOST = 1000

function pretty(text) {
	try {
		return JSON.stringify(JSON.parse(text), null, 2)
	} catch {
		return text ?? ""
	}
}
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

/** @type {Page} */
export const open = shell => {
	const page = h("div.stack")
	let stop = new AbortController()

	function read() {
		stop.abort()
		stop = new AbortController()
		const id = shell.q("id")
		const path = `requests/${encodeURIComponent(id)}`
		const off = session.me.capture === "off" && h("div@capture-off", empty(t("cap.off"), '[capture]\nmode = "all"'))
		if (!id) return load(page, () => get("requests", {limit: 40}), found => [off, block(t("cap.choose"), "", requestTable(found.requests, row => shell.link("inspector", {id: row.request})))])
		return load(page, () => Promise.all([get(path), get(`${path}/capture`).catch(error => error)]), ([{request: row}, found]) => [
			h("div.line.wraps", statusTag(row), h("a.mono.link", {href: shell.to({id})}, raw(id)), dim(time(row.time)), raw(row.client), raw(row.model, "sub"), h("b.line", target(row.target))),
			found.client ? [show(found), may("admin") && replay(path, found.client)] : off || (found.status === 404 ? empty(t("cap.none")) : failure(found, read)),
		])
	}

	function show({client, upstream}) {
		const last = upstream.at(-1)
		const frames = last?.frames ?? []
		const inner = (test, ...kids) => h(`div.inner.stack@${test}`, kids)
		const frame = one => h("li", h("span.dim.num", millis(one.ms)), h("span", one.data))
		return [
			h("div.two.even",
				block(t("cap.client"), button(t("cap.curl"), {onclick: () => copy(curl(client))}), inner("capture-client", h("p.mono", raw(`${client.method} ${client.path}`)), folded(client.headers), pre(pretty(client.body)))),
				block(t("cap.upstream"), "", inner("capture-upstream", upstream.map(one => [h("p.line", code(one.status), target(one.target)), folded(one.headers), pre(pretty(one.body))])))),
			block(t("cap.diff"), "", inner("capture-diff", diffView(pretty(client.body), pretty(last?.body)))),
			h("div.two.even",
				block(t("cap.frames"), num(frames.length), h("ol.inner.frames.code@capture-frames", CODE, frames.slice(0, MOST).map(frame)), frames.length > MOST && h("p.inner.dim", t("more", {n: num(frames.length - MOST)}))),
				block(t("cap.answer"), "", inner("", pre(pretty(client.response))))),
		]
	}

	function replay(path, client) {
		const kind = select("replay-kind", ["target", "model"].map(name => [name, t(`w.${name}`)]), "target", {label: t("cap.replay"), class: "short"})
		const goal = h("input.in.mono@replay-target", {label: t("cap.replay_to"), placeholder: "glm.glm-4.7"})
		const answer = pre("")
		const again = act(t("cap.replay"), {kind: "primary", test: "replay-run"}, async () => {
			fill(answer)
			const reply = await send(url(`/admin/${path}/replay`), {body: {[kind.value]: goal.value.trim()}, signal: stop.signal})
			for await (const text of reply.body.pipeThrough(new TextDecoderStream())) answer.append(text)
		})
		return block(t("cap.replay"), "", h("div.inner.stack", h("div.line", kind, goal, again), h("div.two.even", h("div.stack", h("h3", t("cap.before")), pre(client.response)), h("div.stack", h("h3", t("cap.again")), answer))))
	}

	read()
	return {page, update: read, close: () => stop.abort()}
}
