// The requests: a live list with filters, and the detail of one beside it.
import {dim, fill, h, icon, raw} from "../dom.js"
import {VirtualList} from "../list.js"
import {get, live} from "../net.js"
import {HOURS, button, chip, empty, failure, filter, menu, search, statusTag, target} from "../parts.js"
import {NONE, clock, inOut, iso, moment, money, now, num, seconds, t, time} from "../text.js"
import {requestDetail} from "./request_detail.js"

const COLUMNS = ["time", "status", "client", "model", "target", "route", "first", "total", "tokens", "cost", "finish"]
const NUMBERS = ["first", "total", "tokens", "cost"]
// Those that make room for the detail.
const EXTRA = ["model", "route", "first", "tokens", "finish"]
const FILTERS = ["status", "client", "provider", "model", "route"]
const MORE_FILTERS = ["session", "agent", "team", "target", "protocol"]
const PAGE = 200
const MOST = 2000
const phone = matchMedia("(max-width: 720px)")
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

// The rows of the view by id; at most 2 000 stay in memory.
class Rows {
	byId = new Map()
	total = 0
	next = null
	skipped = 0

	// Returns whether the row is new; one that ended does not become active again.
	put(row) {
		const old = this.byId.get(row.request)
		if (old?.status != null && row.status == null) return false
		this.byId.set(row.request, {...row, at: Math.min(Date.parse(row.time), old?.at ?? Infinity)})
		return !old
	}

	take(found) {
		for (const row of found.requests) this.put(row)
		this.total = Math.max(found.total, this.byId.size)
		this.next = found.next
	}

	list() {
		const rows = [...this.byId.values()].sort((a, b) => b.at - a.at || (a.request < b.request ? 1 : -1))
		for (const row of rows.splice(MOST)) this.byId.delete(row.request)
		return rows
	}

	get active() {
		return [...this.byId.values()].filter(row => row.status == null)
	}

	get full() {
		return this.byId.size >= MOST
	}
}

/** @type {Page} */
export const open = shell => {
	const grouped = () => shell.q("group") === "session"
	let rows = new Rows()
	let wanted = {}
	let view = ""
	let held = []
	let loading = false
	let paused = false
	// The row whose detail is open, and the row that the keyboard is on.
	let chosen = ""
	let cursor = ""
	let catching = 0
	const grid = new VirtualList({key: row => row.request, row: drawRow, height: () => (phone.matches ? 59 : 33), end: older, role: "rowgroup"})
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
	const columns = menu(icon("config"), () => COLUMNS.filter(name => name !== "status").map(box), {cls: "btn", label: t("req.columns"), class: "right hide-s"})
	const bar = h("div.filterbar.line", search(shell, t("req.search")), chips, figures, fresh, oldest, grouping, columns, pauser)

	// Parameters that select requests; a range keeps its start while the page is open.
	function selection() {
		const found = {}
		for (const name of ["q", ...FILTERS, ...MORE_FILTERS, "since", "until"]) if (shell.q(name)) found[name] = shell.q(name)
		const hours = HOURS[shell.q("range")]
		if (hours && !found.since) found.since = wanted.since ?? iso(now() - hours * 36e5)
		return found
	}

	function cell(role, name, ...content) {
		const classes = [NUMBERS.includes(name) ? "num" : "clip", EXTRA.includes(name) && "x", hidden.has(name) && "off"]
		return h("span", {role, "data-col": name, class: classes.filter(Boolean).join(" ")}, content)
	}

	function showColumns(_) {
		fill(header, COLUMNS.map(name => cell("columnheader", name, t(`w.${name}`))))
		grid.draw(true)
	}

	function drawRow(row) {
		const active = row.status == null
		const cells = {
			time: time(row.time, clock(row.time)),
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
		return h("div.row@request-row", {role: "row", "data-request-id": row.request, "data-status": active ? "active" : row.status, "aria-selected": selected, onclick: () => select(row.request)}, COLUMNS.map(name => cell("gridcell", name, cells[name])))
	}

	// Reads a page into the rows, unless the view has changed meanwhile.
	async function take(more) {
		const mine = rows
		loading = true
		try {
			const found = await get("requests", {...wanted, limit: PAGE, ...more})
			if (mine !== rows) return
			if (found.groups) showGroups(found)
			else rows.take(found)
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
		rows = new Rows()
		return take(grouped() && {group: "session"})
	}

	function older() {
		if (!loading && rows.next && !rows.full && !grouped()) take({before: rows.next})
	}

	function showGroups(found) {
		rows.total = found.total
		const line = one => h("a.grouprow", {href: shell.to({...wanted, session: one.session, client: one.client}), "data-session-id": one.session}, h("b.mono.clip", one.session ? raw(one.session) : t("no_name")), raw(one.client, "clip"),
			h("span.num", t("req.n", {n: num(one.requests)})), h("span.num", {class: one.errors ? "bad" : "dim"}, t("req.n_errors", {n: num(one.errors)})), h("span.num.dim", inOut(one)), h("span.num", money(one.cost, 2)), h("span.num.dim", time(one.last)))
		fill(groups, found.groups.map(line), found.next && h("p.dim.pad", t("more", {n: num(found.total - found.groups.length)})))
	}

	function draw() {
		grid.set(rows.list())
		sheet.setAttribute("aria-rowcount", rows.total)
		const active = rows.active.length
		figures.textContent = [t(grouped() ? "s.n" : "req.n", {n: num(rows.total)}), active && t("req.active_n", {n: active}), rows.skipped && t("req.skipped_n", {n: num(rows.skipped)}), rows.full && t("req.most", {n: num(MOST)})].filter(Boolean).join(" · ")
		oldest.hidden = !rows.full
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
		if (paused) {
			// A page that is paused for hours must not grow.
			held = [...held, ...arrived].slice(-2 * MOST)
			return showHeld()
		}
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
		if (paused || !rows.active.length) return
		for (const row of rows.active) rows.byId.set(row.request, {...row})
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
		refresh: read,
		update,
		key(name, event) {
			if (name === "j" || name === "k") walk(name === "j" ? 1 : -1)
			else if (name === "p") pause(!paused)
			else if (name === "Escape" && chosen) select("")
			else if (name === "Enter" && cursor && !event.target.closest("a, button, summary")) select(cursor)
		},
	}
}
