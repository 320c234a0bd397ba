// Plots as SVG at their real width: sparklines, and time series with a line under the pointer.
import {fill, h, s} from "./dom.js"
import {legend} from "./parts.js"
import {clock, moment, num, t} from "./text.js"


export function sparkline(values, cls) {
	const known = values.map(value => value ?? 0)
	const top = Math.max(...known, 1e-9)
	const line = known.map((value, at) => `${at ? "L" : "M"}${((at / Math.max(1, known.length - 1)) * 84).toFixed(1)} ${(22 - (value / top) * 20).toFixed(1)}`).join("")
	return s("svg", {viewBox: "0 0 84 24", class: `spark ${cls}`, "aria-hidden": "true", preserveAspectRatio: "none" }, known.length > 1 && [s("path", {d: `${line}L84 24L0 24Z`, class: "area" }), s("path.line", {d: line})])
}

// The next round number that is not below a value.
function ceiling(value) {
	const size = 10 ** Math.floor(Math.log10(value || 1))
	return ([1.2, 1.6, 2, 2.4, 3.2, 4, 4.8, 6, 8, 12].find(step => step * size >= value) ?? 12) * size
}

const HEIGHT = 208
const LEFT = 42
const RIGHT = 8
const TOP = 10
const BOTTOM = 24

// A time series with axis, hover values and drag to zoom.
/** @param {any} options */
export function plot({test, label, unit, stacked, zoom}) {
	const svg = s("svg.plot", {role: "img", label: label, "data-testid": test, height: HEIGHT})
	const tip = h("div.tip", {hidden: true})
	const cross = s("line.cross", {y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" })
	const chosen = s("rect.chosen", {y: TOP, height: HEIGHT - BOTTOM - TOP, visibility: "hidden" })
	const key = h("div.side")
	const node = h("div.plotwrap", svg, tip)
	let times = ([])
	let series = ([])
	let width = 0
	let max = 1
	let start = (null)
	const last = () => Math.max(1, times.length - 1)
	const x = at => LEFT + (at / last()) * (width - LEFT - RIGHT)
	const y = value => TOP + (1 - value / max) * (HEIGHT - TOP - BOTTOM)
	const path = values => values.map((value, at) => (value == null ? "" : `${at && values[at - 1] != null ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`)).join("")
	const digits = () => (max < 0.8 ? 2 : max < 8 ? 1 : 0)

	function shapes() {
		const base = times.map(() => 0)
		return series.map(row => {
			if (!stacked) {
				const known = row.values.findIndex(value => value != null)
				return s("g", {class: row.cls}, row.area && known >= 0 && s("path", {d: `${path(row.values)}L${x(row.values.length - 1)} ${y(0)}L${x(known)} ${y(0)}Z`, class: "area" }), s("path.line", {d: path(row.values), "stroke-dasharray": row.dash && "4 3" }))
			}
			const tops = base.map((value, at) => value + (row.values[at] ?? 0))
			const back = base.map((_, at) => `L${x(base.length - 1 - at).toFixed(1)} ${y(base[base.length - 1 - at]).toFixed(1)}`).join("")
			const shape = s("path", {d: `${path(tops)}${back}Z`, class: `solid ${row.cls}`})
			tops.forEach((value, at) => {base[at] = value;})
			return shape
		})
	}

	function draw() {
		width = svg.clientWidth
		if (!width || !times.length) return
		const sums = stacked ? times.map((_, at) => series.reduce((sum, row) => sum + (row.values[at] ?? 0), 0)) : series.flatMap(row => row.values.map(value => value ?? 0))
		max = ceiling(Math.max(...sums, 1e-3))
		const ticks = [0, 0.25, 0.5, 0.75, 1].map(part => part * max)
		const all = times[times.length - 1] - times[0]
		const marks = (width > 420 ? [0, 0.25, 0.5, 0.75, 1] : [0, 0.5, 1]).map(part => Math.round(part * last()))
		fill(svg, ticks.map(value => s("line", {x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), class: value ? "grid" : "axis" })), chosen, shapes(),
			ticks.map(value => s("text", {x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, num(value, digits()))),
			marks.map((at, n) => s("text", {x: x(at), y: HEIGHT - 5, "text-anchor": n === 0 ? "start" : n === marks.length - 1 ? "end" : "middle" }, moment(times[at], all))), cross)
	}

	const at = event => Math.max(0, Math.min(last(), Math.round(((event.clientX - svg.getBoundingClientRect().left - LEFT) / (width - LEFT - RIGHT)) * last())))

	function show(point) {
		for (const end of ["x1", "x2"]) cross.setAttribute(end, String(x(point)))
		cross.setAttribute("visibility", "visible")
		const span = times[times.length - 1] - times[0]
		fill(tip, h("b", span > 864e5 ? moment(times[point], 1.5 * 864e5) : clock(times[point])), series.map(row => h("div", h("i", {class: `sq ${row.cls}`}), row.name, h("span", row.values[point] == null ? "—" : num((row.values[point]), max < 10 ? 2 : 0), h("span.unit", unit)))))
		tip.hidden = false
		const right = x(point) > width * 0.6
		Object.assign(tip.style, {left: right ? "auto" : `${x(point) + 16}px`, right: right ? `${width - x(point) + 16}px` : "auto" })
		if (start == null) return
		chosen.setAttribute("x", String(x(Math.min(start, point))))
		chosen.setAttribute("width", String(Math.abs(x(point) - x(start))))
		chosen.setAttribute("visibility", "visible")
	}

	function leave() {
		tip.hidden = true
		start = null
		for (const one of [cross, chosen]) one.setAttribute("visibility", "hidden")
	}

	svg.addEventListener("pointermove", event => times.length && show(at(event)))
	svg.addEventListener("pointerleave", leave)
	svg.addEventListener("pointerdown", event => {if (event.button === 0 && zoom) start = at(event);})
	svg.addEventListener("pointerup", event => {
		const from = start
		const to = at(event)
		leave()
		if (from != null && Math.abs(to - from) > 1) zoom?.(times[Math.min(from, to)], times[Math.max(from, to)])
	})
	new ResizeObserver(draw).observe(svg)

	return {
		node,
		key,
		set(newTimes, newSeries) {
			times = newTimes
			series = newSeries
			svg.setAttribute("aria-label", `${label}, ${t("plot.points", {n: times.length})}`)
			fill(key, legend(series))
			draw()
		},
	}
}
