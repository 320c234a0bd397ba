"""The Lua scripts of the store; each changes one stripe in one atomic step.

A script is sent by its hash, and as text to a server that does not know it. SCRIPT LOAD is never used: some
proxies and access lists refuse it, and a failover forgets what was loaded.

Keys of a stripe, in this order: `i` (keys by version), `x` (keys by expiry), `s` (sizes: `k<key>` of each
value, `t` of all), `g` (generation), then the values. A value is a hash: `d` the value, `n` its version, `o`
ids and versions of the last writes, `x` its expiry in milliseconds, `p` and `q` what its last write replaced,
`c` ids and deadlines of writes that were undone before they arrived. A deleted value leaves `n` and `o`
behind for a minute, so that a write which is sent again is recognised.
"""

from __future__ import annotations

import hashlib

from msgspec import Struct

TOMBSTONE_MS = 60_000
OVERHEAD = 128
"""Bytes that a value takes beside its text, roughly."""


class LuaScript(Struct, frozen=True):
    """A Lua script; servers know it by the SHA-1 of its text."""

    text: str
    sha: str


def _script(*parts: str) -> LuaScript:
    text = "\n".join(part.strip() for part in parts)
    return LuaScript(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_SHARED = f"""
local index, expiries, sizes, generation = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local tombstone_ms = {TOMBSTONE_MS}

local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function text_of(number)
  return string.format('%.0f', number)
end

local function next_version(now, last)
  local top = redis.call('ZREVRANGE', index, 0, 0, 'WITHSCORES')
  return math.max(now, (tonumber(last) or 0) + 1, (tonumber(top[2]) or 0) + 1)
end

local function forget(key)
  redis.call('ZREM', index, key)
  redis.call('ZREM', expiries, key)
  local size = redis.call('HGET', sizes, 'k' .. key)
  if size then
    redis.call('HDEL', sizes, 'k' .. key)
    redis.call('HINCRBY', sizes, 't', -tonumber(size))
  end
end

local function publish(channel, place, key, version, writer)
  local changed = redis.call('INCR', generation)
  redis.call('PUBLISH', channel, place .. ' ' .. changed .. ' ' .. version .. ' ' .. writer .. ' ' .. key)
  return changed
end

local function write(value, key, text, version, writes, expires)
  -- First: a server without memory refuses HSET, but only if the script has changed nothing before.
  redis.call('HSET', value, 'd', text, 'n', version, 'o', writes)
  redis.call('HDEL', value, 'x', 'p', 'q')
  redis.call('PERSIST', value)
  forget(key)
  redis.call('ZADD', index, version, key)
  if expires then
    redis.call('HSET', value, 'x', expires)
    redis.call('PEXPIREAT', value, expires)
    redis.call('ZADD', expiries, expires, key)
  end
  local size = #text + #key + {OVERHEAD}
  redis.call('HSET', sizes, 'k' .. key, size)
  redis.call('HINCRBY', sizes, 't', size)
end

local function bury(value, key, version, writes)
  redis.call('HDEL', value, 'd', 'x', 'p', 'q')
  redis.call('HSET', value, 'n', version, 'o', writes)
  redis.call('PEXPIRE', value, tombstone_ms)
  forget(key)
end
"""

READ = _script("""
local stored = redis.call('HMGET', KEYS[2], 'd', 'n', 'x')
stored[4] = redis.call('GET', KEYS[1]) or '0'
return stored
""")
"""KEYS: generation, value. Returns value, version, expiry, generation."""

READ_MANY = _script("""
local found = {redis.call('GET', KEYS[1]) or '0'}
for at = 2, #KEYS do
  found[at] = redis.call('HMGET', KEYS[at], 'd', 'n', 'x')
end
return found
""")
"""KEYS: generation, values. Returns the generation, then value, version and expiry of each."""

WRITE = _script(
    _SHARED,
    """
local value = KEYS[5]
local channel, place, writer, key, id, deadline = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local expected, ttl, deletes, keeps, text = ARGV[7], ARGV[8], ARGV[9] == '1', ARGV[9] == '2', ARGV[10]
local now = now_us()
local old = redis.call('HMGET', value, 'd', 'n', 'o', 'x', 'c')
local writes = old[3] or ''
local done = string.match(writes, id .. '=(%d+)')
if done then
  return {'done', done}
end
if now > tonumber(deadline) or (old[5] and string.match(old[5], id .. '=')) then
  return {'late', text_of(now)}
end
local version = old[1] and old[2] or '0'
if expected ~= '' and expected ~= version then
  return {'differs', old[1], version, old[4], redis.call('GET', generation) or '0'}
end
if deletes and not old[1] then
  return {'ok', '0', redis.call('GET', generation) or '0', '0'}
end
local last = {}
for one in string.gmatch(writes, '%S+') do
  last[#last + 1] = one
end
local made = text_of(next_version(now, old[2]))
last[#last + 1] = id .. '=' .. made
writes = table.concat(last, ' ', math.max(1, #last - 3))
if deletes then
  bury(value, key, made, writes)
  made = '0'
else
  local expires = ttl ~= '' and text_of(math.floor(now / 1000) + tonumber(ttl)) or nil
  write(value, key, text, made, writes, expires)
end
if (expected == '' or keeps) and old[1] then
  redis.call('HSET', value, 'p', old[1], 'q', old[4] or '')
end
return {'ok', made, publish(channel, place, key, made, writer), old[1] and '1' or '0'}
""",
)
"""KEYS: the stripe, value. ARGV: channel, place, writer, key, id of the write, deadline in µs, expected
version (empty: any), ttl in ms (empty: none), '1' to delete, '2' to keep what is replaced for an undo (always
with an empty version), text. Returns `ok` with version (0 if deleted), generation and whether there was a
value; `done` with the version, if this write was carried out before; `differs` with value, version, expiry
and generation; or `late` with the server's time."""

WRITE_MANY = _script(
    _SHARED,
    """
local id, deadline = ARGV[1], ARGV[2]
local now = now_us()
local count = #KEYS - 4
local old, done, differs, last_version = {}, 0, false, 0
for at = 1, count do
  old[at] = redis.call('HMGET', KEYS[4 + at], 'd', 'n', 'o', 'x')
  last_version = math.max(last_version, tonumber(old[at][2]) or 0)
  if string.match(old[at][3] or '', id .. '=(%d+)') then
    done = done + 1
  end
  local version = old[at][1] and old[at][2] or '0'
  differs = differs or version ~= ARGV[4 * at]
end
if done == count then
  return {'done'}
end
if now > tonumber(deadline) then
  return {'late', text_of(now)}
end
if differs then
  local found = {'differs'}
  for at = 1, count do
    found[1 + at] = {old[at][1], old[at][1] and old[at][2] or '0', old[at][4]}
  end
  return found
end
local made = {'ok'}
local first = next_version(now, last_version)
for at = 1, count do
  local key, ttl, text = ARGV[4 * at - 1], ARGV[4 * at + 1], ARGV[4 * at + 2]
  local last = {}
  for one in string.gmatch(old[at][3] or '', '%S+') do
    last[#last + 1] = one
  end
  local version = text_of(first + at - 1)
  last[#last + 1] = id .. '=' .. version
  local writes = table.concat(last, ' ', math.max(1, #last - 3))
  local expires = text_of(math.floor(now / 1000) + tonumber(ttl))
  -- Each request does this: the sizes, which only trims need, are left out.
  redis.call('HSET', KEYS[4 + at], 'd', text, 'n', version, 'o', writes, 'x', expires)
  redis.call('PEXPIREAT', KEYS[4 + at], expires)
  redis.call('ZADD', index, version, key)
  redis.call('ZADD', expiries, expires, key)
  made[1 + at] = version
end
redis.call('INCR', generation)
return made
""",
)
"""KEYS: the stripe, values. ARGV: id of the write, deadline in µs, then key, expected version, ttl in ms and
text of each. Writes all or none, and publishes nothing; for spaces that are not trimmed. Returns `ok` with
the versions, `done`, `differs` with value, version and expiry of each, or `late` with the time."""

UNDO = _script(
    _SHARED,
    """
local value = KEYS[5]
local channel, place, writer, key, id = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local source, text, expires, deadline = ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local now = now_us()
local old = redis.call('HMGET', value, 'd', 'n', 'o', 'p', 'q', 'c')
local last = {}
for one in string.gmatch(old[3] or '', '%S+') do
  last[#last + 1] = one
end
if not string.match(old[3] or '', id .. '=') and now <= tonumber(deadline) then
  -- It may still arrive: networks send again what was lost, even for a connection that was closed.
  local awaited = {id .. '=' .. deadline}
  for one, until_us in string.gmatch(old[6] or '', '(%S+)=(%d+)') do
    if tonumber(until_us) >= now then
      awaited[#awaited + 1] = one .. '=' .. until_us
    end
  end
  redis.call('HSET', value, 'c', table.concat(awaited, ' '))
  if not old[2] then
    redis.call('PEXPIRE', value, tombstone_ms)
  end
  return 0
end
if #last == 0 or string.match(last[#last], '^([^=]+)=') ~= id then
  return 0
end
table.remove(last)
local writes = table.concat(last, ' ')
if source == 'replaced' then
  if old[5] == '?' then
    return 0
  end
  text, expires = old[4], old[5]
end
local made = text_of(next_version(now, old[2]))
if source == 'absent' or not text then
  bury(value, key, made, writes)
  made = '0'
else
  write(value, key, text, made, writes, expires and expires ~= '' and expires or nil)
  if #last > 0 then
    -- What the write before this one replaced was overwritten by this one: it is not known any more.
    redis.call('HSET', value, 'q', '?')
  end
end
publish(channel, place, key, made, writer)
return 1
""",
)
"""KEYS: the stripe, value. ARGV: channel, place, writer, key, id of the write; `absent`, `value` or
`replaced`; the former text and its expiry; the deadline in µs. Returns 1 if the write was the key's last one:
it is undone. One that has not arrived will not be carried out."""

LIST = _script(
    _SHARED,
    """
local before, most = ARGV[1], tonumber(ARGV[2])
local gone = {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', expiries, '-inf', text_of(math.floor(now_us() / 1000)))) do
  gone[key] = true
end
local found = {redis.call('GET', generation) or '0'}
local from = 0
while #found <= 2 * most do
  local rows = redis.call(
    'ZREVRANGEBYSCORE', index, before, '-inf', 'WITHSCORES', 'LIMIT', from, 500)
  for at = 1, #rows, 2 do
    if not gone[rows[at]] and #found <= 2 * most then
      found[#found + 1] = rows[at]
      found[#found + 1] = rows[at + 1]
    end
  end
  if #rows < 1000 then
    break
  end
  from = from + 500
end
return found
""",
)
"""KEYS: the stripe. ARGV: highest version, most keys.

Returns the generation, then keys and versions, newest first."""

EXPIRE = _script(
    _SHARED,
    """
local now = text_of(math.floor(now_us() / 1000))
local gone = redis.call('ZRANGEBYSCORE', expiries, '-inf', now, 'LIMIT', 0, 200)
for _, key in ipairs(gone) do
  forget(key)
end
local total = tonumber(redis.call('HGET', sizes, 't') or '0')
return {#gone, redis.call('ZCARD', index), total}
""",
)
"""KEYS: the stripe. Removes expired keys from its lists; returns number, rest and size of the rest."""

OLDEST = _script(
    _SHARED,
    """
local rows = redis.call('ZRANGE', index, 0, tonumber(ARGV[1]) - 1, 'WITHSCORES')
local found = {}
for at = 1, #rows, 2 do
  found[#found + 1] = {rows[at], rows[at + 1], redis.call('HGET', sizes, 'k' .. rows[at]) or '0'}
end
return found
""",
)
"""KEYS: the stripe. ARGV: most keys. Returns key, version and size of the oldest."""

REMOVE = _script(
    _SHARED,
    """
local channel, place, writer = ARGV[1], ARGV[2], ARGV[3]
local removed = 0
for at = 5, #KEYS do
  local key, version = ARGV[2 * at - 6], ARGV[2 * at - 5]
  if tonumber(redis.call('ZSCORE', index, key) or '0') == tonumber(version) then
    redis.call('DEL', KEYS[at])
    forget(key)
    publish(channel, place, key, '0', writer)
    removed = removed + 1
  end
end
return {removed, redis.call('GET', generation) or '0'}
""",
)
"""KEYS: the stripe, values. ARGV: channel, place, writer, key and version of each. Deletes unchanged ones."""

SET_ASIDE = _script(
    _SHARED,
    """
local channel, place, writer, key = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- Another process may have replaced it: then it has a version, or is gone.
local found = redis.pcall('HMGET', KEYS[5], 'd', 'n')
if not found.err and (not found[1] or string.match(found[2] or '', '^%d+$')) then
  return 0
end
redis.call('RENAME', KEYS[5], KEYS[6])
redis.call('EXPIRE', KEYS[6], 2592000)
forget(key)
publish(channel, place, key, '0', writer)
return 1
""",
)
"""KEYS: the stripe, a damaged value, its new name. ARGV: channel, place, writer, key.

Returns 0 if the value is not damaged any more."""

CHECK_TIME = _script("""
local epoch = redis.call('GET', KEYS[1])
local returned = redis.call('GET', KEYS[2])
local time = redis.call('TIME')
return {epoch, returned, time[1], time[2]}
""")
"""KEYS: the epoch, the last return. Returns both, and the server's time as seconds and microseconds."""

NOTE_RETURN = _script("""
local time = redis.call('TIME')
redis.call('SET', KEYS[1], time[1] * 1000 + math.floor(time[2] / 1000), 'PX', ARGV[1])
""")
"""KEYS: the last return. ARGV: milliseconds to keep it. Notes that the server came back now."""

START_EPOCH = _script("""
redis.call('SET', KEYS[1], ARGV[1], 'NX')
return redis.call('GET', KEYS[1])
""")
"""KEYS: the epoch. ARGV: a new one. Returns the epoch in force: it changes only if Redis lost its data."""
