// The sessions: those with something set or active, and the state of one with its turns.
import {fill, h, raw, s} from "../dom.js"
import {VirtualList} from "../list.js"
import {call, url} from "../net.js"
import {act, as, bar, block, empty, failure, legend, search, statusTag, table, tag, target, tr} from "../parts.js"
import {ago, clock, money, moment, now, num, percent, relative, seconds, t, time} from "../text.js"

const PAGE = 200
const names = text => text.split(",").map(one => one.trim()).filter(Boolean)
const keyOf = row => `${row.client ?? ""}/${row.id}`

/** @param {Shell} shell @returns {View} */
export function open(shell) {
	let next = null
	let rows = []
	let loading = false
	let shown = ""
	let view = null
	let last
	let timer = 0
	const list = new VirtualList({key: keyOf, row: drawRow, height: () => 86, end: more})
	const note = h("div.over")
	const figures = h("span.figures")
	const detail = h("div.sdet", {test: "session-detail", role: "region", tabindex: 0})
	const split = h("div.split.sess", h("div.list", list.node, note), detail)

	function drawRow(row) {
		const stop = row.stop_message
		const tags = [row.sticky && tag(`!${row.sticky}`, "acc"), row.disable?.length > 0 && tag(`#${row.disable.join(", ")}`, "bad"), row.allow?.length > 0 && tag(t("s.allow_tag", {names: row.allow.join(", ")})), stop && tag(`${t("s.stop")} ${stop.used}/${stop.max_repeats}`), row.tasks?.slice(0, 2).map(one => tag(`${t("s.clock")} ${moment(one.dueAt)}`, "warn"))]
		return h("a", {href: shell.link("sessions", {q: shell.q("q"), id: row.id}), test: "session-row", "data-session-id": row.id, "aria-current": row.id === shell.q("id") && "true"},
			h("div.r", h("b.clip", row.client ? raw(row.client) : t("ranks.none")), h("span.end", ago(row.last_at ?? row.updated_at))), h("div.r", raw(row.id, "mono dim clip"), h("span.end", `${num(row.requests ?? 0)} · ${money(row.cost, 2)}`)), h("div.tags.mono", tags))
	}

	const page = before => call(url("/admin/sessions", {q: shell.q("q"), limit: PAGE, before}))

	async function read() {
		try {
			take(await page(), [])
			fill(note, !rows.length && (shell.q("q") ? empty(t("s.none_match")) : empty(t("s.empty"), "<**status**>")))
		} catch (error) {
			fill(note, failure(error, read))
		}
	}

	async function more() {
		if (!next || loading) return
		loading = true
		const found = await page(next).catch(() => null)
		loading = false
		if (found) take(found, rows)
	}

	function take(found, before) {
		next = found.next
		rows = [...new Map([...before, ...found.sessions].map(row => [keyOf(row), row])).values()]
		list.set(rows)
		figures.textContent = t(next ? "s.n_more" : "s.n", {n: num(rows.length)})
	}

	// Reads the chosen session; its form stays when it is open already.
	async function readOne(again) {
		const id = shell.q("id")
		split.classList.toggle("open", id !== "")
		if (shown === id && !again) return
		if (shown !== id) view = null
		shown = detail.dataset.sessionId = id
		detail.setAttribute("aria-label", id || t("nav.sessions"))
		if (!id) return fill(detail, h("p.empty", t("s.choose")))
		try {
			const [{session}, found] = await Promise.all([call(url("/admin/sessions", {id})), call(url("/admin/requests", {session: id, limit: 30})).catch(() => ({requests: []}))])
			if (shown !== id) return
			if (!view) {
				view = sessionView(shell, session, () => readOne(true))
				fill(detail, view.node)
			}
			view.show(session, found)
		} catch (error) {
			if (shown !== id) return
			view = null
			fill(detail, back(shell), failure(error, error.status !== 404 && (() => readOne(true))))
		}
	}

	shell.on("sessions", data => {
		if (!timer) timer = setTimeout(() => {
			timer = 0
			read()
		}, 1000)
		if (data.changed.includes(shown)) readOne(true)
	})
	shell.on("requests", data => shown && [...data.started, ...data.finished].some(row => row.session === shown) && readOne(true))
	shell.every(20000, () => list.draw(true))

	function walk(by) {
		const at = rows.findIndex(row => row.id === shell.q("id"))
		const to = Math.max(0, Math.min(rows.length - 1, at + by))
		if (!rows[to]) return
		shell.set({id: rows[to].id}, at >= 0)
		list.reveal(to)
	}

	function update() {
		list.draw(true)
		readOne()
		if (shell.q("q") === last) return
		last = shell.q("q")
		read()
	}
	update()
	if (!shown) fill(detail, h("p.empty", t("s.choose")))
	return {
		body: h("div.body", h("div.filterbar", search(t("s.search"), shell.q("q"), q => shell.set({q}, true)), figures), split),
		refresh: () => Promise.all([read(), readOne(true)]),
		close: () => list.close(),
		key: name => (name === "Escape" ? shell.set({id: ""}) : (name === "j" || name === "k") && walk(name === "j" ? 1 : -1)),
		update
	}
}

const back = shell => h("a.back.sub", {href: shell.link("sessions", {q: shell.q("q")})}, `← ${t("s.all")}`)

// The detail: fields that keep what is typed, and parts that follow the data.
function sessionView(shell, row, again) {
	const {id, client} = row
	const [summary, tasks, turns, lately, gauge] = ["p.dim", "div.form", "div", "div", "div"].map(one => h(one))
	const used = h("span.end", {test: "stop-used"})
	const dirty = new Set()
	const fields = {}
	const post = async (path, body, ...done) => {
		await call(path, {body: {session: id, ...(client ? {client} : {}), ...body}})
		for (const name of done) dirty.delete(name)
		again()
	}
	const input = (name, props) => (fields[name] = h("input.in", {test: name, oninput: () => dirty.add(name), ...props}))
	const buttons = (test, name, set, clear) => [act(t("s.set"), {test: `${test}-apply`, name}, set), act(t("s.clear"), {kind: "quiet", test: `${test}-clear`, name}, clear)]

	function setting(name, hint, set, clear) {
		const test = `set-${name}`
		const label = t(`s.${name}`)
		const box = input(test, {class: "mono", label, placeholder: t(hint)})
		return h("div", h("h3", label), h("div.inputs", box, buttons(test, label, () => post("/admin/routing", set(box.value.trim()), test), () => post("/admin/routing", clear(), test))))
	}
	const disabled = () => row.disable ?? []
	const stopText = input("stop-text", {label: t("s.stop_text"), placeholder: t("s.stop_hint")})
	const stopMax = input("stop-max", {type: "number", min: 1, max: 100, label: t("s.stop_max"), class: "short", value: "10"})
	const stop = body => post("/admin/sessions/stop_message", body, "stop-text", "stop-max")
	const taskText = input("task-text", {label: t("s.task_text"), placeholder: t("s.task_hint")})
	const taskDue = input("task-due", {type: "datetime-local", label: t("s.task_due")})
	const node = h("div.form", back(shell), h("div", h("h2.mono", raw(id)), summary),
		h("div.set",
			// A change has no field that clears the sticky target alone: everything is cleared and the rest set again.
			setting("sticky", "s.any", text => ({sticky: text}), () => ({clear: true, allow: row.allow ?? [], disable: disabled()})),
			setting("allow", "s.any", text => ({allow: names(text)}), () => ({allow: []})),
			setting("disable", "s.nothing", text => ({disable: names(text), enable: disabled().filter(one => !names(text).includes(one))}), () => ({enable: disabled()})),
			h("div", h("h3.r", t("s.stop"), used), h("div.inputs", stopText, stopMax, buttons("stop", t("s.stop"), () => stop({text: stopText.value, max_repeats: Number(stopMax.value) || 10}), () => stop({clear: true}))), gauge),
			h("div.whole", h("h3", t("s.clock")), tasks, h("div.inputs", taskText, taskDue, act(t("s.add"), {icon: "plus", test: "task-add"}, async () => {
				await post("/admin/clock/add", {task: taskText.value.trim(), dueAt: new Date(taskDue.value || now() + 36e5).toISOString()})
				taskText.value = ""
			})))),
		turns, lately)
	const put = (name, value) => {
		if (!dirty.has(name) && document.activeElement !== fields[name]) fields[name].value = value
	}
	const cancel = one => act(t("do.cancel"), {kind: "quiet", test: "task-cancel", name: one.task}, async () => {
		await call("/admin/clock/cancel", {body: {taskId: one.taskId}})
		again()
	})
	const task = one => h("div.r", {test: "task-row", "data-task-id": one.taskId}, h("span.mono", time(one.dueAt)), raw(one.task, "clip"), h("span.dim.nw", relative(one.dueAt)), h("span.end", cancel(one)))
	const line = one => tr({}, as("mono dim", h("a", {href: shell.link("requests", {session: id, id: one.request})}, clock(one.time))), statusTag(one), as("hide-s clip", raw(one.agent || one.model)), as("clip", target(one.target)), as("num hide-s", seconds(one.seconds)), as("num", money(one.cost)))

	return {
		node,
		show(session, found) {
			row = session
			const message = row.stop_message
			fill(summary, t("req.n", {n: num(row.requests ?? 0)}), ` · ${money(row.cost, 2)} · `, t("s.cache"), " ", percent(row.cache_hit_rate), row.cache?.last_miss && [" · ", t("s.last_miss"), " ", raw(row.cache.last_miss)])
			put("set-sticky", row.sticky ?? "")
			put("set-allow", (row.allow ?? []).join(", "))
			put("set-disable", disabled().join(", "))
			put("stop-text", message?.text ?? "")
			put("stop-max", message?.max_repeats ?? 10)
			used.textContent = message ? t("s.used", {used: message.used, max: message.max_repeats}) : ""
			fill(gauge, message && bar(message.used / message.max_repeats, "c3"))
			fill(tasks, row.tasks?.map(task))
			fill(turns, row.turns?.length > 0 && h("div", {test: "turns"}, block(t("s.turns"), legend(Object.entries({turn: "c1", agent: "c5", tool: "c3", error: "cbad"}).map(([name, cls]) => ({name: t(`tu.${name}`), cls}))), timeline(shell, row.turns))))
			fill(lately, block(t("nav.requests"), h("a.link", {href: shell.link("requests", {session: id})}, t("req.n", {n: num(found.total ?? 0)})), table(t("nav.requests"), null, found.requests.toReversed().map(line))))
		}
	}
}

// Turns over time: a lane for the main conversation, one per sub-agent, one for server tools.
function timeline(shell, turns) {
	const agents = [...new Set(turns.map(turn => turn.agent).filter(Boolean))]
	const lanes = [t("tu.main"), ...agents, ...(turns.some(turn => turn.tools?.length) ? [t("tu.tools")] : [])]
	const height = lanes.length * 40 + 34
	const [left, right] = [118, 884]
	const end = turn => Date.parse(turn.end) || now()
	const from = Math.min(...turns.map(turn => Date.parse(turn.start)))
	const length = Math.max(1000, ...turns.map(turn => end(turn) - from))
	const x = at => left + ((at - from) / length) * (right - left)
	const y = lane => 22 + lane * 40
	const hop = (at, one, other) => s("path.hop", {d: `M${at} ${y(one) + 5}V${y(other) - 5}`})
	const line = (x1, x2, y1, y2, cls) => s("line", {x1, x2, y1, y2, class: cls})
	const draw = turn => {
		const lane = turn.agent ? 1 + agents.indexOf(turn.agent) : 0
		const [begin, done] = [x(Date.parse(turn.start)), x(end(turn))]
		const dots = Math.max(1, Math.min(40, turn.rounds ?? 1))
		const dot = (_, n) => s("circle", {cx: begin + ((done - begin) * n) / dots, cy: y(lane), r: n % dots ? 3 : 4, class: `${turn.agent ? "" : "full"} ${turn.status >= 400 && n === dots ? "cbad" : ""}`})
		const tool = (name, n) => s("g.c3", hop(done + n * 9, lane, lanes.length - 1), s("circle.full", {cx: done + n * 9, cy: y(lanes.length - 1), r: 4}, s("title", name)))
		return s("a", {href: shell.link("requests", {id: turn.request}), class: turn.agent ? "c5" : "c1", label: `${turn.agent || lanes[0]} ${clock(turn.start)}`}, lane > 0 && hop(begin, 0, lane), line(begin, done, y(lane), y(lane), "act"), Array.from({length: dots + 1}, dot), turn.tools?.map(tool))
	}
	const marks = [0, 1, 2, 3, 4, 5, 6].map(n => from + (length * n) / 6)
	return h("div.turns", s("svg", {viewBox: `0 0 900 ${height}`, role: "group", label: t("s.turns")},
		marks.map((at, n) => [line(x(at), x(at), 10, height - 22, "ln"), s("text", {x: x(at), y: height - 6, "text-anchor": n === 6 ? "end" : "middle"}, moment(at, length))]),
		lanes.map((name, n) => [line(left, right, y(n), y(n), "ln"), s("text.lb", {x: 0, y: y(n) + 4}, name.length > 18 ? `${name.slice(0, 17)}…` : name)]), turns.map(draw)))
}
