// The sessions: those with something set or active, and the state of one with its turns.
import {fill, h, raw, s} from "../dom.js"
import {virtualList} from "../list.js"
import {get, may, post} from "../net.js"
import {act, bar, block, empty, failure, legend, none, requestTable, search, tag} from "../parts.js"
import {NONE, ago, clock, iso, money, moment, now, num, percent, t, time} from "../text.js"

const names = text => text.split(",").map(one => one.trim()).filter(Boolean)
const PAGE = 200
const keyOf = row => [row.server, row.client, row.id].join("/")

/** @type {Page} */
export const open = shell => {
	let next = null
	let rows = []
	let loading = false
	let shown
	let view = null
	let last
	let timer = 0
	const list = virtualList({key: keyOf, row: drawRow, height: () => 86, end: more})
	const note = h("div.over")
	const figures = h("span.figures")
	const detail = h("div.scroll.sdet@session-detail", {role: "region", tabindex: 0})
	const split = h("div.split.sess", h("div.list", list.node, note), detail)
	const back = h("a.back.sub", {href: shell.link("sessions", {q: shell.q("q")})}, `← ${t("nav.sessions")}`)

	// Two clients may use the same id.
	const isOpen = row => row.id === shell.q("id") && (!shell.q("client") || row.client === shell.q("client"))

	function drawRow(row) {
		const stop = row.stop_message
		const tags = [row.sticky && tag(raw(`!${row.sticky}`), "acc"), row.disable?.length > 0 && tag(raw(`#${row.disable.join(", ")}`), "bad"), row.allow?.length > 0 && tag([t("s.allow_tag"), " ", raw(row.allow.join(", "))]), stop && tag([raw("stopMessage"), ` ${stop.used}/${stop.max_repeats}`]), row.tasks?.slice(0, 2).map(one => tag(`${t("s.clock")} ${moment(one.dueAt)}`, "warn"))]
		return h("a@session-row", {href: shell.link("sessions", {q: shell.q("q"), id: row.id, client: row.client}), "data-session-id": row.id, "aria-current": isOpen(row) && "true"},
			h("div.line", h("b.clip", row.client ? raw(row.client) : t("no_name")), h("span.end.dim.small", ago(row.last_at ?? row.updated_at * 1000))), h("div.line", raw(row.id, "mono dim clip"), h("span.end.dim.small.nw", `${num(row.requests ?? 0)} · ${money(row.cost, 2)}`)), h("div.line.mono", tags))
	}

	const page = before => get("sessions", {q: shell.q("q"), limit: before ? PAGE : Math.max(PAGE, rows.length), before})

	async function read() {
		try {
			take(await page(), [])
			fill(note, !rows.length && (shell.q("q") ? empty(t("no_match")) : empty(t("s.empty"), "<**status**>")))
		} catch (error) {
			fill(note, failure(error, read))
		}
	}

	async function more() {
		if (!next || loading) return
		loading = true
		await page(next).then(found => take(found, rows), () => {})
		loading = false
	}

	function take(found, before) {
		next = found.next
		rows = [...new Map([...before, ...found.sessions].map(row => [keyOf(row), row])).values()]
		list.set(rows)
		figures.textContent = t("s.n", {n: num(rows.length) + (next ? "+" : "")})
	}

	async function readOne(again) {
		const [id, client] = ["id", "client"].map(shell.q)
		split.classList.toggle("open", id !== "")
		const key = [id, client].join("/")
		if (shown === key && !again) return
		if (shown !== key) view = null
		shown = key
		detail.dataset.sessionId = id
		detail.setAttribute("aria-label", id || t("nav.sessions"))
		if (!id) return fill(detail, h("p.empty", t("s.choose")))
		try {
			const [{session}, found] = await Promise.all([get("sessions", {id, client}), get("requests", {session: id, client, limit: 30}).catch(() => ({requests: [], total: 0}))])
			if (shown !== key) return
			view ??= sessionView(shell, session, () => readOne(true))
			if (!view.node.parentNode) fill(detail, back, view.node)
			view.show(session, found)
		} catch (error) {
			if (shown !== key) return
			view = null
			fill(detail, back, failure(error, () => readOne(true)))
		}
	}

	shell.on("sessions", data => {
		if (!timer) timer = setTimeout(() => {
			timer = 0
			read()
		}, 1000)
		if (data.changed.includes(shell.q("id"))) readOne(true)
	})
	shell.on("requests", data => shell.q("id") && [...data.started, ...data.finished].some(row => row.session === shell.q("id")) && readOne(true))
	shell.every(20000, () => list.draw(true))

	function walk(by) {
		const at = rows.findIndex(isOpen)
		const to = Math.max(0, Math.min(rows.length - 1, at + by))
		if (!rows[to]) return
		shell.set({id: rows[to].id, client: rows[to].client}, at >= 0)
		list.reveal(to)
	}

	function update() {
		list.draw(true)
		readOne()
		if (shell.q("q") === last) return
		last = shell.q("q")
		rows = []
		read()
	}
	update()
	return {
		body: h("div.body", h("div.filterbar.line", search(shell, t("w.search")), figures), split),
		refresh: () => Promise.all([read(), readOne(true)]),
		key: name => (name === "Escape" ? shell.set({id: "", client: ""}) : (name === "j" || name === "k") && walk(name === "j" ? 1 : -1)),
		update,
	}
}

// The detail. Values are defaults, shown until something is typed.
function sessionView(shell, row, again) {
	const [summary, tasks, turns, lately, gauge] = ["p.dim", "div.stack", "div@turns", "div", "div"].map(one => h(one))
	const used = h("span.end.dim@stop-used")
	const write = async (path, body) => {
		await post(path, {session: row.id, ...(row.client && {client: row.client}), ...body})
		again()
	}
	const input = (test, label, props) => h(`input.in@${test}`, {label, placeholder: label, readonly: !may("operator"), ...props})

	// A form whose fields are set or cleared; without a login for that they are only shown.
	function setting(test, title, side, fields, path, set, clear) {
		const name = title.textContent ?? title
		const send = body => async () => {
			await write(path, body())
			form.reset()
		}
		const apply = act(t("w.set"), {test: `${test}-apply`, name}, send(set))
		const onsubmit = event => {
			event.preventDefault()
			if (apply) apply.click()
		}
		const form = h("form.stack", {onsubmit}, h("h3.line", title, side), h("div.line", fields, apply, act(t("w.clear"), {kind: "quiet", test: `${test}-clear`, name}, send(clear))))
		return form
	}
	const listed = name => [row[name] ?? []].flat()
	// Sticky cannot be cleared alone: all is cleared and the rest set again.
	const routing = {
		sticky: [typed => ({sticky: typed.join()}), () => ({clear: true, allow: listed("allow"), disable: listed("disable")})],
		allow: [typed => ({allow: typed}), () => ({allow: []})],
		disable: [typed => ({disable: typed, enable: listed("disable").filter(one => !typed.includes(one))}), () => ({enable: listed("disable")})],
	}
	const boxes = Object.keys(routing).map(name => [name, input(`set-${name}`, t(`s.${name}`), {class: "mono", placeholder: name === "disable" ? NONE : t("s.any")})])
	const stopText = input("stop-text", t("s.stop_text"))
	const stopMax = input("stop-max", t("s.stop_max"), {type: "number", min: 1, max: 100, class: "short"})
	const taskText = input("task-text", t("s.task"))
	const taskDue = input("task-due", t("s.task_due"), {type: "datetime-local"})
	const node = h("div.stack", h("div", h("h2.mono", raw(row.id)), summary),
		h("div.set.block",
			boxes.map(([name, box]) => setting(`set-${name}`, t(`s.${name}`), null, box, "routing", () => routing[name][0](names(box.value)), routing[name][1])),
			h("div.stack", setting("stop", raw("stopMessage"), used, [stopText, stopMax], "sessions/stop_message", () => ({text: stopText.value, max_repeats: Number(stopMax.value) || 10}), () => ({clear: true})), gauge),
			h("div.stack.whole", h("h3", t("s.clock")), tasks, h("div.line", taskText, taskDue, act(t("s.add"), {icon: "plus", test: "task-add"}, async () => {
				await write("clock/add", {task: taskText.value.trim(), dueAt: iso(taskDue.value || now() + 36e5)})
				taskText.value = ""
			})))),
		turns, lately)
	const task = one => h("div.line@task-row", {"data-task-id": one.taskId}, h("span.mono", time(one.dueAt)), raw(one.task, "clip"), h("span.end.dim.nw", ago(one.dueAt)), act(t("w.cancel"), {kind: "quiet", test: "task-cancel", name: one.task}, () => post("clock/cancel", {taskId: one.taskId}).finally(again)))

	return {
		node,
		show(session, found) {
			row = session
			const stop = row.stop_message
			fill(summary, t("req.n", {n: num(row.requests ?? 0)}), ` · ${money(row.cost, 2)} · `, t("w.cache"), " ", percent(row.cache_hit_rate), row.cache?.last_miss && [" · ", t("s.last_miss"), " ", raw(row.cache.last_miss)])
			for (const [name, box] of boxes) box.defaultValue = listed(name).join(", ")
			stopText.defaultValue = stop?.text ?? ""
			stopMax.defaultValue = stop?.max_repeats ?? 10
			used.textContent = stop ? t("s.used", {used: stop.used, max: stop.max_repeats}) : ""
			fill(gauge, stop && bar(stop.used / stop.max_repeats, "c3"))
			fill(tasks, row.tasks?.map(task))
			fill(turns, block(t("s.turns"), legend(Object.entries({"s.turns": "c1", "w.agent": "c5", "s.tools": "c3", "w.errors": "cbad"}).map(([name, cls]) => ({name: t(name), cls}))), row.turns?.length ? timeline(shell, row.turns) : none()))
			fill(lately, block(t("nav.requests"), h("a.link", {href: shell.to({session: row.id})}, t("req.n", {n: num(found.total)})), requestTable(found.requests, one => shell.to({session: row.id, id: one.request}))))
		},
	}
}

// Turns over time: lanes for main, each sub-agent and server tools.
function timeline(shell, turns) {
	const agents = [...new Set(turns.map(turn => turn.agent).filter(Boolean))]
	const lanes = [t("s.main"), ...agents, ...(turns.some(turn => turn.tools?.length) ? [t("s.tools")] : [])]
	const height = lanes.length * 40 + 34
	const [left, right] = [118, 884]
	const end = turn => Date.parse(turn.end) || now()
	const from = Math.min(...turns.map(turn => Date.parse(turn.start)))
	const length = Math.max(1000, ...turns.map(turn => end(turn) - from))
	const x = at => left + ((at - from) / length) * (right - left)
	const y = lane => 22 + lane * 40
	const path = (d, cls) => s("path", {d, class: cls})
	const dot = (cx, lane, r, cls, title) => s("circle", {cx, cy: y(lane), r, class: cls}, title && s("title", title))
	const draw = turn => {
		const lane = turn.agent ? 1 + agents.indexOf(turn.agent) : 0
		const [begin, done] = [x(Date.parse(turn.start)), x(end(turn))]
		const dots = Math.max(1, Math.min(40, turn.rounds ?? 1))
		const round = (_, n) => dot(begin + ((done - begin) * n) / dots, lane, n % dots ? 3 : 4, `${turn.agent ? "" : "full"} ${turn.status >= 400 && n === dots ? "cbad" : ""}`)
		const tool = (name, n) => s("g.c3", path(`M${Math.min(895, done + n * 9)} ${y(lane) + 5}V${y(lanes.length - 1) - 5}`, "hop"), dot(Math.min(895, done + n * 9), lanes.length - 1, 4, "full", name))
		return s("a", {href: shell.to({id: turn.request}), class: turn.agent ? "c5" : "c1", label: `${turn.agent || lanes[0]} ${clock(turn.start)}`}, lane > 0 && path(`M${begin} ${y(0) + 5}V${y(lane) - 5}`, "hop"), path(`M${begin} ${y(lane)}H${done}`, "act"), Array.from({length: dots + 1}, round), turn.tools?.map(tool))
	}
	const marks = [0, 1, 2, 3, 4, 5, 6].map(n => from + (length * n) / 6)
	return h("div.turns", s("svg", {viewBox: `0 0 900 ${height}`, role: "group", label: t("s.turns")},
		marks.map((at, n) => [path(`M${x(at)} 10V${height - 22}`, "ln"), s("text", {x: x(at), y: height - 6, "text-anchor": n === 6 ? "end" : "middle"}, length < 6e5 ? clock(at) : moment(at, length))]),
		lanes.map((name, n) => [path(`M${left} ${y(n)}H${right}`, "ln"), s("text", {x: 0, y: y(n) + 4}, name.length > 18 ? `${name.slice(0, 17)}…` : name)]), turns.map(draw)))
}
