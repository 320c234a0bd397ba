// Texts of the page in the chosen language, and the forms of numbers, money and times.
import {h} from "./dom.js"

export const LANGUAGES = ["en", "zh-CN"]
export const NONE = "—"

const TIME = /** @type {const} */ ({hour: "2-digit", minute: "2-digit", hourCycle: "h23"})
const DATES = /** @type {const} */ ({short: TIME, clock: {...TIME, second: "2-digit"}, day: {month: "short", day: "numeric"}})
const SPANS = /** @type {const} */ ([["day", 86400], ["hour", 3600], ["minute", 60], ["second", 0]])
const formats = new Map()
let texts = {}
let skew = 0

export const lang = () => document.documentElement.lang

// The language that was kept, else that of the browser.
export const chosenLanguage = () => LANGUAGES.find(name => name === localStorage.getItem("routecodex.lang")) ?? (/^zh/i.test(navigator.language) ? "zh-CN" : "en")

export async function loadLanguage(name) {
	texts = await (await fetch(`/ui/assets/i18n/${name}.json`)).json()
	formats.clear()
	document.documentElement.lang = name
}

// Returns a text, with its placeholders filled; one of a thing has no plural.
export const t = (key, values = {}) => (texts[key] ?? key).replace(/(\{n\} \w+)s\b/, values.n === "1" ? "$1" : "$&").replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "")

// The text for a name that may be unknown, which is then shown itself.
export const known = (area, name) => texts[`${area}.${name}`] ?? name

export const setClock = at => {
	skew = Date.parse(at) - Date.now() || 0
}

// Milliseconds, by the clock of the server.
export const now = () => Date.now() + skew
export const iso = at => new Date(at).toISOString()

function form(key, make) {
	if (!formats.has(key)) formats.set(key, make())
	return formats.get(key)
}
const date = (name, at) => form(name, () => new Intl.DateTimeFormat(lang(), DATES[name])).format(new Date(at))

export const num = (value, most = 0, least = 0) => form(`${most} ${least}`, () => new Intl.NumberFormat(lang(), {minimumFractionDigits: least, maximumFractionDigits: most})).format(value)

export const unit = (value, name) => h("span.nw", value, h("span.unit", name))

// Parts of a large count: 84.2 and k.
export function scaled(value) {
	const [size, name] = value >= 1e9 ? [1e9, "G"] : value >= 1e6 ? [1e6, "M"] : value >= 1e4 ? [1e3, "k"] : [1, ""]
	const shown = value / size
	return [num(shown, shown < 10 ? 2 : shown < 100 ? 1 : 0), name]
}

export const count = value => (value == null ? NONE : scaled(value).join(" ").trim())

export const inOut = row => (row.input_tokens == null ? NONE : `${count(row.input_tokens)} / ${count(row.output_tokens ?? 0)}`)

// US dollars; unknown is a dash, never 0.
export function money(value, digits = 4) {
	if (value == null) return NONE
	const size = Math.abs(value)
	if (size && size < 5e-5) return `<$${num(1e-4, 4)}`
	const places = !size || size >= 1 ? 2 : size < 0.01 ? 4 : digits
	return `$${num(value, places, places)}`
}

export const percent = share => (share == null ? NONE : unit(num(share * 100, share < 0.1 ? 2 : 1), "%"))

// Parts of a duration: 820 and ms.
export function duration(value) {
	if (value < 0.9995) return [num(value * 1000, value < 0.01 ? 1 : 0), t("unit.ms")]
	return value < 100 ? [num(value, value < 10 ? 2 : 1), t("unit.s")] : [num(value / 60, 1), t("unit.min")]
}
export const seconds = value => (value == null ? NONE : unit(...duration(value)))
export const millis = value => seconds(value == null ? null : value / 1000)

export const clock = at => date("clock", at)

// Local time as it fits a span: with the day when it is long.
export const moment = (at, span = 0) => [span > 864e5 && date("day", at), span <= 1728e5 && date("short", at)].filter(Boolean).join(" ")

// A time, with the exact one on hover.
export function time(at, text) {
	const when = new Date(at ?? NaN)
	if (Number.isNaN(+when)) return NONE
	return h("time", {datetime: iso(at), title: `${when.toLocaleString(lang())} · ${iso(at)}`}, text ?? (Math.abs(now() - +when) > 432e5 ? moment(at, 1e8) : clock(at)))
}

const until = at => (+new Date(at) - now()) / 1000

export function relative(at) {
	const left = until(at)
	const [name, size] = SPANS.find(([, size]) => Math.abs(left) >= size)
	return form("relative", () => new Intl.RelativeTimeFormat(lang(), {style: "narrow", numeric: "auto"})).format(Math.round(left / (size || 1)), name)
}

export const ago = at => (at == null ? NONE : time(at, relative(at)))

// Minutes and seconds until a time, 0:41.
export function countdown(at) {
	const left = Math.max(0, Math.round(until(at)))
	return left > 5400 ? relative(at) : `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`
}
