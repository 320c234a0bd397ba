// Texts of the page in the chosen language, and the forms of numbers, money and times.
import {h} from "./dom.js"

export const LANGUAGES = ["en", "zh-CN"]
export const NONE = "—"

let texts = ({})
let skew = 0
const formats = new Map()

export const lang = () => document.documentElement.lang

// Chooses the language: as kept, else as the browser asks.
export function chosenLanguage() {
	const kept = localStorage.getItem("routecodex.lang") ?? ""
	if (LANGUAGES.includes(kept)) return kept
	return navigator.languages?.[0]?.toLowerCase().startsWith("zh") ? "zh-CN" : "en"
}

// Loads the texts of a language and makes it that of the page.
export async function loadLanguage(name) {
	const answer = await fetch(`/ui/assets/i18n/${name}.json`)
	texts = await answer.json()
	formats.clear()
	document.documentElement.lang = name
}

// Returns a text, with its placeholders filled.
export const t = (key, values = {}) => (texts[key] ?? key).replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? ""))

// Whether there is a text of this name.
export const has = key => key in texts

// Sets the clock of the page to that of the server.
export function setClock(at) {
	const time = Date.parse(at)
	if (Number.isFinite(time)) skew = time - Date.now()
}

// Milliseconds now, by the clock of the server.
export const now = () => Date.now() + skew

function kept(key, make) {
	if (!formats.has(key)) formats.set(key, make())
	return formats.get(key)
}

export const num = (value, digits = 0) => kept(`n${digits}`, () => new Intl.NumberFormat(lang(), {maximumFractionDigits: digits})).format(value)

const fixed = (value, digits) => kept(`f${digits}`, () => new Intl.NumberFormat(lang(), {minimumFractionDigits: digits, maximumFractionDigits: digits})).format(value)

// A value with its unit, smaller.
export const unit = (value, name) => h("span.nw", value, name && h("span.unit", t(`unit.${name}`)))

// Parts of a large count: 84.2 and k.
export function scaled(value) {
	if (value >= 1e9) return [num(value / 1e9, 2), "G"]
	if (value >= 1e6) return [num(value / 1e6, 1), "M"]
	if (value >= 1e4) return [num(value / 1e3, 1), "k"]
	return [num(value, value < 10 && value % 1 ? 2 : value < 100 ? 1 : 0), ""]
}

// A count in short form: 84.2 k.
export function count(value) {
	if (value == null) return NONE
	const [text, size] = scaled(value)
	return size ? `${text} ${t(`unit.${size}`)}` : text
}

// US dollars; unknown is a dash, never 0.
export function money(value, digits = 4) {
	if (value == null) return NONE
	if (value !== 0 && Math.abs(value) < 0.00005) return `<$${fixed(0.0001, 4)}`
	return `$${fixed(value, Math.abs(value) >= 1 || value === 0 ? 2 : Math.abs(value) < 0.01 ? 4 : digits)}`
}

// A share from 0 to 1.
export const percent = value => (value == null ? NONE : unit(num(value * 100, value < 0.1 ? 2 : 1), "percent"))

// Parts of a duration: 820 and ms.
export function duration(seconds) {
	if (seconds < 0.9995) return [num(seconds * 1000, seconds < 0.01 ? 1 : 0), "ms"]
	if (seconds < 100) return [num(seconds, seconds < 10 ? 2 : 1), "s"]
	return [num(seconds / 60, 1), "min"]
}

export const seconds = value => (value == null ? NONE : unit(...duration(value)))

export const millis = value => seconds(value == null ? null : value / 1000)

const local = at => kept("clock", () => new Intl.DateTimeFormat(lang(), {hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" })).format(new Date(at))
const short = at => kept("short", () => new Intl.DateTimeFormat(lang(), {hour: "2-digit", minute: "2-digit", hourCycle: "h23" })).format(new Date(at))
const day = at => kept("day", () => new Intl.DateTimeFormat(lang(), {month: "short", day: "numeric" })).format(new Date(at))

// Local time of the day with seconds.
export const clock = at => local(at)

// Local time as it fits a span: with the day when it is long.
export const moment = (at, span = 0) => (span > 2 * 864e5 ? day(at) : span > 864e5 ? `${day(at)} ${short(at)}` : short(at))

// Local date and time, and the exact one in UTC.
export const exact = at => `${new Date(at).toLocaleString(lang())} · ${new Date(at).toISOString()}`

// A time, with the exact one on hover.
export function time(at, text) {
	if (at == null || !Number.isFinite(new Date(at).getTime())) return NONE
	const old = Math.abs(now() - new Date(at).getTime()) > 43200e3
	return h("time", {datetime: new Date(at).toISOString(), title: exact(at)}, text ?? (old ? `${day(at)} ${short(at)}` : local(at)))
}

export function relative(at) {
	const gone = (new Date(at).getTime() - now()) / 1000
	const form = kept("rel", () => new Intl.RelativeTimeFormat(lang(), {style: "narrow", numeric: "auto" }))
	for (const [name, size] of Object.entries({day: 86400, hour: 3600, minute: 60})) {
		if (Math.abs(gone) >= size) return form.format(Math.round(gone / size), /** @type {any} */ (name))
	}
	return form.format(Math.round(gone), "second")
}

// How long ago, or how far ahead.
export const ago = at => (at == null ? NONE : time(at, relative(at)))

// Minutes and seconds until a time, 0:41.
export function countdown(at) {
	const left = Math.max(0, Math.round((new Date(at).getTime() - now()) / 1000))
	if (left > 5400) return relative(at)
	return `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`
}

// How long something lasts or lasted, in its two largest units.
export function span(ms) {
	const minutes = Math.floor(ms / 60000)
	const parts = [[Math.floor(minutes / 1440), "d"], [Math.floor(minutes / 60) % 24, "h"], [minutes % 60, "min"]]
	const shown = parts.filter(([value]) => value).slice(0, 2)
	return (shown.length ? shown : [[Math.floor(ms / 1000), "s"]]).map(([value, name]) => `${value} ${t(`unit.${name}`)}`).join(" ")
}
