// The requests: a live list with filters, and the detail of one beside it.
import {dim, fill, h, icon, phone, raw} from "../dom.js"
import {virtualList} from "../list.js"
import {get, live} from "../net.js"
import {HOURS, button, chip, empty, failure, filter, menu, search, statusTag, table, target} from "../parts.js"
import {NONE, clock, inOut, iso, moment, money, now, num, seconds, t, time} from "../text.js"
import {requestDetail} from "./request_detail.js"

// The classes of each; those with `x` make room for the detail.
const COLUMNS = {time: "", status: "", client: "clip", model: "clip x", target: "clip", route: "clip x", first: "num x", total: "num", tokens: "num x", cost: "num", finish: "clip x"}
const FILTERS = ["status", "client", "provider", "model", "route"]
const MORE_FILTERS = ["session", "agent", "team", "target", "protocol"]
const PAGE = 200
const MOST = 2000
const hidden = new Set()
const value = (row, name) => (name === "provider" ? row.target?.split(".")[0] : row[name])

// Whether a row that arrives belongs into the view.
const matches = (row, wanted) => Object.entries(wanted).every(([name, wish]) => {
	if (name === "since") return Date.parse(row.time) >= Date.parse(wish)
	if (name === "until") return Date.parse(row.time) <= Date.parse(wish)
	if (name === "q") return [row.request, row.model, row.target, row.session, row.client, row.error, row.code].some(text => text?.toLowerCase().includes(wish.toLowerCase()))
	if (name === "status" && !/^\d+$/.test(wish)) return wish === (row.status == null ? "active" : row.status >= 400 ? "error" : "ok")
	return String(value(row, name) ?? "") === wish
})

// The rows of a view by id; at most 2 000 stay in memory.
function makeRows() {
	const byId = new Map()
	const rows = {byId, total: 0, next: null, skipped: 0, put, take, list, active: () => [...byId.values()].filter(row => row.status == null), full: () => byId.size >= MOST}

	// Returns whether the row is new; one that ended does not become active again.
	function put(row) {
		const old = byId.get(row.request)
		if (old?.status != null && row.status == null) return false
		byId.set(row.request, {...row, at: Math.min(Date.parse(row.time), old?.at ?? Infinity)})
		return !old
	}

	// What was under way and is not among the newest has ended unseen; rows behind a gap are read again.
	function take({requests, total, next}, older) {
		const newest = new Set(requests.map(row => row.request))
		const joins = !next || [...newest].some(id => byId.has(id))
		const end = Math.max(...requests.map(row => Date.parse(row.time)))
		const isGone = row => (!joins && row.at < end) || (row.status == null && !newest.has(row.request) && row.at < now() - 5000)
		if (older || !joins || !byId.size) rows.next = next
		for (const row of byId.values()) if (!older && isGone(row)) byId.delete(row.request)
		requests.forEach(put)
		rows.total = Math.max(total, byId.size)
	}

	function list() {
		const sorted = [...byId.values()].sort((a, b) => b.at - a.at || (a.request < b.request ? 1 : -1))
		for (const row of sorted.splice(MOST)) byId.delete(row.request)
		return sorted
	}
	return rows
}

/** @type {Page} */
export const open = shell => {
	const grouped = () => shell.q("group") === "session"
	let rows = makeRows()
	let wanted = {}
	let view = ""
	let held = []
	let loading = false
	let paused = false
	// The row whose detail is open, and the row that the keyboard is on.
	let chosen = ""
	let cursor = ""
	let catching = 0
	const grid = virtualList({key: row => row.request, row: drawRow, height: () => (phone.matches ? 59 : 33), end: older, role: "rowgroup"})
	const header = h("div.row.head", {role: "row"})
	const sheet = h("div.grid@requests", {role: "grid", label: t("nav.requests")}, grid.node)
	grid.node.prepend(header)
	const groups = h("div.scroll")
	const note = h("div.over")
	const figures = h("span.figures")
	const fresh = button("", {test: "new-count", kind: "primary", hidden: true, onclick: () => pause(false)})
	const oldest = button(t("req.older"), {hidden: true, onclick: () => shell.set({until: grid.items.at(-1).time, id: ""})})
	const pauser = button(t("req.pause"), {icon: "pause", test: "pause", "aria-pressed": "false", onclick: () => pause(!paused)})
	const grouping = button(t("req.group"), {test: "group", onclick: () => shell.set({group: grouped() ? "" : "session", id: ""})})
	const detail = requestDetail(shell, {walk, close: () => select("")})
	const split = h("div.split", h("div.list", sheet, groups, note), detail.node)
	const chips = h("div.line.chips")
	const box = name => h("label.item", h("input", {type: "checkbox", checked: !hidden.has(name), onchange: event => showColumns(hidden[event.target.checked ? "delete" : "add"](name))}), t(`w.${name}`))
	const columns = menu(icon("config"), () => Object.keys(COLUMNS).filter(name => name !== "status").map(box), {cls: "btn", label: t("req.columns"), class: "right hide-s"})
	const bar = h("div.filterbar.line", search(shell, t("req.search")), chips, figures, fresh, oldest, grouping, columns, pauser)

	// Parameters that select requests; a range keeps its start while the page is open.
	function selection() {
		const found = {}
		for (const name of ["q", ...FILTERS, ...MORE_FILTERS, "since", "until"]) if (shell.q(name)) found[name] = shell.q(name)
		const hours = HOURS[shell.q("range")]
		if (hours && !found.since) found.since = wanted.since ?? iso(now() - hours * 36e5)
		return found
	}

	const cells = (role, content) => Object.entries(COLUMNS).map(([name, cls]) => h("span", {role, "data-col": name, class: hidden.has(name) ? `${cls} off` : cls}, content(name)))

	function showColumns(_) {
		fill(header, cells("columnheader", name => t(`w.${name}`)))
		grid.draw(true)
	}

	function drawRow(row) {
		const active = row.status == null
		const parts = {
			time: h("span.mono.sub", time(row.time, clock(row.time))),
			status: statusTag(row),
			client: [row.client ? raw(row.client) : NONE, row.agent && dim(" ", raw(row.agent))],
			model: raw(row.model),
			target: target(row.target),
			route: raw(row.route),
			first: seconds(row.first_byte),
			total: seconds(active ? Math.max(0, (now() - row.at) / 1000) : row.seconds),
			tokens: inOut(row),
			cost: money(row.cost),
			finish: raw(row.code || row.finish),
		}
		const selected = String(row.request === (chosen || cursor))
		return h("div.row@request-row", {role: "row", "data-request-id": row.request, "data-status": active ? "active" : row.status, "aria-selected": selected, onclick: () => select(row.request)}, cells("gridcell", name => parts[name]))
	}

	// Reads a page into the rows, unless the view has changed meanwhile.
	async function take(more) {
		const mine = rows
		loading = true
		try {
			const found = await get("requests", {...wanted, limit: PAGE, ...more})
			if (mine !== rows) return
			if (found.groups) showGroups(found)
			else if (paused && !more) return hold(found.requests)
			else rows.take(found, more?.before)
			const none = !found.groups?.length && !rows.byId.size
			fill(note, none && (Object.keys(wanted).length ? empty(t("no_match")) : empty(t("req.empty"), "routecodex claude")))
			draw()
		} catch (error) {
			if (mine === rows) fill(note, failure(error, read))
		} finally {
			loading = false
		}
	}

	function read() {
		rows = makeRows()
		return take(grouped() && {group: "session"})
	}

	function older() {
		if (!loading && rows.next && !rows.full() && !grouped()) take({before: rows.next})
	}

	function showGroups(found) {
		rows.total = found.total
		const columns = [
			[t("w.session"), one => h("a", {href: shell.to({...wanted, session: one.session, client: one.client})}, one.session ? raw(one.session) : t("no_name")), "mono clip"],
			[t("w.client"), one => raw(one.client), "clip"],
			[t("w.requests"), one => num(one.requests), "num"],
			[t("w.errors"), one => num(one.errors), "num hide-s"],
			[t("w.tokens"), inOut, "num hide-s"],
			[t("w.cost"), one => money(one.cost, 2), "num"],
			[t("w.time"), one => time(one.last), "num hide-s"],
		]
		fill(groups, table(t("req.group"), columns, found.groups, one => ({"data-session-id": one.session})), found.next && h("p.dim.pad", t("more", {n: num(found.total - found.groups.length)})))
	}

	function draw() {
		grid.set(rows.list())
		sheet.setAttribute("aria-rowcount", rows.total)
		const active = rows.active().length
		figures.textContent = [t(grouped() ? "s.n" : "req.n", {n: num(rows.total)}), active && t("req.active_n", {n: active}), rows.skipped && t("req.skipped_n", {n: num(rows.skipped)}), rows.full() && t("req.most", {n: num(MOST)})].filter(Boolean).join(" · ")
		oldest.hidden = !rows.full()
	}

	function pause(wish) {
		paused = wish
		live.pause(wish)
		pauser.setAttribute("aria-pressed", wish)
		if (!wish) {
			held.splice(0).forEach(accept)
			draw()
		}
		showHeld()
	}

	// A page that is paused for hours must not grow.
	function hold(arrived) {
		held = [...held, ...arrived].slice(-2 * MOST)
		showHeld()
	}

	function showHeld() {
		const n = new Set(held.map(row => row.request).filter(id => !rows.byId.has(id))).size
		fresh.hidden = !n
		fresh.textContent = t("req.new_n", {n: num(n)})
	}

	function accept(row) {
		if (!matches(row, wanted)) rows.total -= rows.byId.delete(row.request) ? 1 : 0
		else if (rows.put(row)) rows.total++
		if (row.status != null) detail.again(row.request)
	}

	shell.on("requests", data => {
		if (grouped()) return
		const arrived = [...data.started, ...data.finished]
		if (paused) return hold(arrived)
		arrived.forEach(accept)
		if (data.skipped?.started || data.skipped?.finished) catchUp(data.skipped.started)
		if (rows.byId.size) fill(note)
		draw()
	})

	// Fetches what the stream left out, at most every two seconds.
	function catchUp(left) {
		rows.total += left
		rows.skipped += left
		if (!catching) catching = setTimeout(() => {
			catching = 0
			if (!paused) take()
		}, 2000)
	}

	shell.every(1000, () => {
		if (paused || !rows.active().length) return
		for (const row of rows.active()) rows.byId.set(row.request, {...row})
		grid.set(rows.list())
	})

	const select = id => shell.set({id}, id && chosen)

	function walk(by) {
		const list = grid.items
		const at = list.findIndex(row => row.request === (chosen || cursor))
		const to = Math.max(0, Math.min(list.length - 1, at < 0 ? 0 : at + by))
		if (!list.length) return
		cursor = list[to].request
		if (chosen) select(cursor)
		else grid.draw(true)
		grid.reveal(to)
	}

	function showFilters() {
		const values = name => (name === "status" ? ["ok", "error", "active"] : [...new Set([...rows.byId.values()].map(row => value(row, name)).filter(Boolean))])
		const names = [...FILTERS, ...MORE_FILTERS.filter(shell.q)].sort((a, b) => Number(shell.q(b) !== "") - Number(shell.q(a) !== ""))
		const [since, until] = ["since", "until"].map(name => wanted[name] && moment(wanted[name], 1e8))
		fill(chips, (wanted.since || wanted.until) && chip(t("w.range"), `${since ?? ""} – ${until ?? ""}`, () => shell.set({range: "", since: "", until: ""})), names.map(name => filter(shell, name, () => values(name))))
		grouping.setAttribute("aria-pressed", grouped())
		sheet.hidden = grouped()
		groups.hidden = !grouped()
	}

	function update() {
		chosen = shell.q("id")
		cursor = chosen || cursor
		split.classList.toggle("open", chosen !== "")
		detail.node.hidden = !chosen
		detail.show(chosen)
		grid.draw(true)
		if (!shell.q("range") && !shell.q("since")) delete wanted.since
		wanted = selection()
		const next = JSON.stringify([wanted, grouped()])
		if (next === view) return
		view = next
		showFilters()
		read()
	}

	showColumns()
	update()
	return {
		body: h("div.body", bar, split),
		refresh: () => (grouped() ? read() : take()),
		update,
		key(name, event) {
			if (name === "j" || name === "k") walk(name === "j" ? 1 : -1)
			else if (name === "p") pause(!paused)
			else if (name === "Escape" && chosen) select("")
			else if (name === "Enter" && cursor && !event.target.closest("a, button, summary")) select(cursor)
		},
	}
}
