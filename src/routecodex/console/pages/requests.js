// The requests: a live list with filters, and the detail of one beside it.
import {fill, h, icon, raw} from "../dom.js"
import {VirtualList} from "../list.js"
import {call, live, url} from "../net.js"
import {button, empty, failure, filter, menu, search, statusTag, target} from "../parts.js"
import {NONE, clock, count, money, now, num, seconds, t, time} from "../text.js"
import {requestDetail} from "./request_detail.js"

const COLUMNS = ["time", "status", "client", "model", "target", "route", "first", "total", "tokens", "cost", "finish"]
const NUMBERS = ["first", "total", "tokens", "cost"]
const FILTERS = ["status", "client", "provider", "model", "route"]
const MORE_FILTERS = ["session", "agent", "team", "target", "protocol"]
const HOURS = {"1h": 1, "6h": 6, "24h": 24, "7d": 168, "30d": 720}
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

// The rows of the view by id, newest first; at most 2 000 stay in memory.
class Rows {
	byId = new Map()
	total = 0
	next = null
	skipped = 0

	// Takes a row over; one that ended does not become active again. Returns whether it is new.
	put(row) {
		const old = this.byId.get(row.request)
		if (old?.status != null && row.status == null) return false
		const at = Date.parse(row.time)
		this.byId.set(row.request, {...row, at: old ? Math.min(old.at, at) : at})
		return !old
	}

	take(found) {
		for (const row of found.requests) this.put(row)
		this.total = Math.max(found.total ?? 0, this.byId.size)
	}

	list() {
		const rows = [...this.byId.values()].sort((a, b) => b.at - a.at || (a.request < b.request ? 1 : -1))
		for (const row of rows.splice(MOST)) this.byId.delete(row.request)
		return rows
	}

	get active() {
		return [...this.byId.values()].filter(row => row.status == null)
	}
}

/** @param {Shell} shell @returns {View} */
export function open(shell) {
	const grouped = () => shell.q("group") === "session"
	let rows = new Rows()
	let wanted = {}
	let view = ""
	let held = []
	let loading = false
	let paused = false
	let chosen = ""
	let key = ""
	let catching = 0
	const grid = new VirtualList({key: row => row.request, row: drawRow, height: () => (phone.matches ? 59 : 33), end: older, role: "rowgroup"})
	const header = h("div.row.head", {role: "row"})
	const sheet = h("div.grid", {role: "grid", test: "requests", label: t("nav.requests")}, h("div", {role: "rowgroup"}, header), grid.node)
	const groups = h("div.scroll")
	const note = h("div.over")
	const figures = h("span.figures")
	const fresh = button("", {test: "new-count", kind: "primary", hidden: true, onclick: () => pause(false)})
	const pauser = button(t("req.pause"), {icon: "pause", test: "pause", "aria-pressed": "false", onclick: () => pause(!paused)})
	const grouping = button(t("req.group"), {test: "group", onclick: () => shell.set({group: grouped() ? "" : "session", id: ""})})
	const detail = requestDetail(shell, {walk, close: () => select("")})
	const split = h("div.split", h("div.list", sheet, groups, note), detail.node)
	const chips = h("div.chips")
	const box = name => h("label.item", h("input", {type: "checkbox", checked: !hidden.has(name), onchange: event => layout(hidden[event.target.checked ? "delete" : "add"](name))}), t(`col.${name}`))
	const columns = menu(icon("columns"), () => COLUMNS.filter(name => name !== "status").map(box), {cls: "btn", title: t("req.columns"), class: "right hide-s"})
	const bar = h("div.filterbar", search(t("req.search"), shell.q("q"), q => shell.set({q}, true)), chips, figures, fresh, grouping, columns, pauser)

	// The parameters of the view that select requests; a range keeps its start while the page is open.
	function selection() {
		const found = {}
		for (const name of ["q", ...FILTERS, ...MORE_FILTERS, "since", "until"]) if (shell.q(name)) found[name] = shell.q(name)
		const hours = HOURS[shell.q("range")]
		if (hours && !found.since) found.since = wanted.since ?? new Date(now() - hours * 36e5).toISOString()
		return found
	}

	function layout(_change) {
		fill(header, COLUMNS.map(name => h("span", {role: "columnheader", "data-col": name, class: NUMBERS.includes(name) && "num"}, t(`col.${name}`))))
		for (const name of COLUMNS) sheet.classList.toggle(`no-${name}`, hidden.has(name))
		grid.draw(true)
	}

	function drawRow(row) {
		const active = row.status == null
		const cells = {
			time: time(row.time, clock(row.time)), status: statusTag(row), client: [row.client ? raw(row.client) : NONE, row.agent && h("span.dim", " ", raw(row.agent))], model: raw(row.model), target: target(row.target), route: raw(row.route), first: seconds(row.first_byte),
			total: seconds(active ? Math.max(0, (now() - row.at) / 1000) : row.seconds), tokens: row.input_tokens == null ? NONE : `${count(row.input_tokens)} / ${count(row.output_tokens ?? 0)}`, cost: money(row.cost), finish: raw(row.code || row.finish)
		}
		return h("div.row", {role: "row", test: "request-row", "data-request-id": row.request, "data-status": active ? "active" : row.status, "aria-selected": String(row.request === (chosen || key)), onclick: () => select(row.request)}, COLUMNS.map(name => h("span", {role: "gridcell", "data-col": name, class: NUMBERS.includes(name) ? "num" : "clip"}, cells[name])))
	}

	const page = more => call(url("/admin/requests", {...wanted, limit: PAGE, ...more}))

	async function read() {
		const mine = new Rows()
		rows = mine
		loading = true
		try {
			const found = await page(grouped() && {group: "session"})
			if (mine !== rows) return
			if (grouped()) showGroups(found)
			else rows.take(found)
			rows.next = found.next
			const none = !found.groups?.length && !rows.byId.size
			fill(note, none && (Object.keys(wanted).length ? empty(t("req.none_match")) : empty(t("req.empty"), "routecodex claude")))
			draw()
		} catch (error) {
			if (mine === rows) fill(note, failure(error, read))
		} finally {
			loading = false
		}
	}

	// Reads the page before the oldest row.
	async function older() {
		if (loading || !rows.next || rows.byId.size >= MOST || grouped()) return
		loading = true
		const mine = rows
		const found = await page({before: rows.next}).catch(() => null)
		loading = false
		if (!found || mine !== rows) return
		rows.take(found)
		rows.next = found.next
		draw()
	}

	function showGroups(found) {
		rows.total = found.total
		const line = one => h("a.grouprow", {href: shell.link("requests", {...wanted, session: one.session, client: one.client}), "data-session-id": one.session}, h("b.mono.clip", one.session ? raw(one.session) : t("req.no_session")), raw(one.client, "clip"), h("span.num", t("req.n", {n: num(one.requests)})), h("span.num", {class: one.errors ? "bad" : "dim"}, t("req.n_errors", {n: num(one.errors)})), h("span.num.dim", `${count(one.input_tokens)} / ${count(one.output_tokens)}`), h("span.num", money(one.cost, 2)), h("span.num.dim", time(one.last)))
		fill(groups, found.groups.map(line), found.next && h("p.dim.pad", t("req.more_groups", {n: num(found.total - found.groups.length)})))
	}

	function draw() {
		grid.set(rows.list())
		sheet.setAttribute("aria-rowcount", rows.total)
		const active = rows.active.length
		figures.textContent = [t(grouped() ? "s.n" : "req.n", {n: num(rows.total)}), active && t("req.active_n", {n: active}), rows.skipped && t("req.skipped_n", {n: num(rows.skipped)}), rows.byId.size >= MOST && t("req.most", {n: num(MOST)})].filter(Boolean).join(" · ")
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
		if (!catching) catching = setTimeout(async () => {
			catching = 0
			const mine = rows
			const found = await page().catch(() => null)
			if (!found || mine !== rows || paused) return
			rows.take(found)
			draw()
		}, 2000)
	}

	shell.every(1000, () => {
		if (!paused) for (const row of rows.active) {
			rows.byId.set(row.request, {...row})
			grid.replace(row.request, rows.byId.get(row.request))
		}
	})

	const select = id => shell.set({id}, id && chosen)

	function walk(by) {
		const list = grid.items
		const at = list.findIndex(row => row.request === (chosen || key))
		const to = Math.max(0, Math.min(list.length - 1, at < 0 ? 0 : at + by))
		if (!list.length) return
		key = list[to].request
		if (chosen) select(key)
		else grid.draw(true)
		grid.reveal(to)
	}

	function showFilters() {
		const values = name => (name === "status" ? ["ok", "error", "active"] : [...new Set([...rows.byId.values()].map(row => value(row, name)).filter(Boolean))])
		const names = [...FILTERS, ...MORE_FILTERS.filter(shell.q)].sort((a, b) => Number(shell.q(b) !== "") - Number(shell.q(a) !== ""))
		fill(chips, wanted.since && h("button.chip.on", {type: "button", onclick: () => shell.set({range: "", since: "", until: ""})}, `${t("f.range")}: `, shell.q("range") ? t(`rg.${shell.q("range")}`) : t("f.zoomed"), icon("close")), names.map(name => filter(name, shell.q(name), () => values(name), wish => shell.set({[name]: wish, id: ""}))))
		grouping.setAttribute("aria-pressed", grouped())
		sheet.hidden = grouped()
		groups.hidden = !grouped()
	}

	function update() {
		chosen = shell.q("id")
		key = chosen || key
		split.classList.toggle("open", chosen !== "")
		detail.node.hidden = !chosen
		detail.show(chosen)
		grid.draw(true)
		if (!shell.q("range") && !shell.q("since")) delete wanted.since
		wanted = selection()
		const now = JSON.stringify([wanted, grouped()])
		if (now === view) return
		view = now
		showFilters()
		read()
	}

	layout()
	update()
	return {
		body: h("div.body", bar, split),
		refresh: read,
		close: () => grid.close(),
		update,
		key(name, event) {
			if (name === "j" || name === "k") walk(name === "j" ? 1 : -1)
			else if (name === "p") pause(!paused)
			else if (name === "Escape" && chosen) select("")
			else if (name === "Enter" && key && !event.target.closest("a, button, summary")) select(key)
		}
	}
}
