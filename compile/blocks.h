/* The scan of outline.c over the blocks of a body.

   Read once for each WIDTH, the bytes of a vector, with the TARGET that has such vectors. */

#define JOINED(name, width) name##_##width
#define NAMED(name, width) JOINED(name, width)
#define OF(name) NAMED(name, WIDTH)
#define VECTOR static inline TARGET __attribute__((always_inline))

#if WIDTH == 32
typedef __m256i OF(Vector);
#define BITS(name) _mm256_##name##_si256
#define BYTES(name) _mm256_##name
#else
typedef __m128i OF(Vector);
#define BITS(name) _mm_##name##_si128
#define BYTES(name) _mm_##name
#endif

#define COUNT (BLOCK / WIDTH)
#define EACH(part) for (int part = 0; part < COUNT; part++)

typedef struct {
    OF(Vector) at[COUNT];
} OF(Block);
typedef OF(Block) OF(Flags);

VECTOR OF(Block) OF(load)(const unsigned char *at)
{
    OF(Block) block;
    EACH(part)
        block.at[part] = BITS(loadu)((const OF(Vector) *)(at + part * WIDTH));
    return block;
}

VECTOR uint64_t OF(mask_of)(OF(Flags) flags)
{
    uint64_t mask = 0;
    EACH(part)
        mask |= (uint64_t)(uint32_t)BYTES(movemask_epi8)(flags.at[part]) << (part * WIDTH);
    return mask;
}

VECTOR bool OF(any)(OF(Flags) flags)
{
    EACH(part)
        flags.at[0] = BITS(or)(flags.at[0], flags.at[part]);
    return BYTES(movemask_epi8)(flags.at[0]) != 0;
}

VECTOR OF(Flags) OF(equal)(OF(Block) block, unsigned char sign)
{
    EACH(part)
        block.at[part] = BYTES(cmpeq_epi8)(block.at[part], BYTES(set1_epi8)((char)sign));
    return block;
}

VECTOR OF(Flags) OF(from)(OF(Block) block, unsigned char least)
{
    EACH(part)
        block.at[part] =
            BYTES(cmpeq_epi8)(BYTES(max_epu8)(block.at[part], BYTES(set1_epi8)((char)least)), block.at[part]);
    return block;
}

VECTOR OF(Flags) OF(highest_bit)(OF(Block) block)
{
    return block;
}

VECTOR OF(Flags) OF(either)(OF(Flags) one, OF(Flags) other)
{
    EACH(part)
        one.at[part] = BITS(or)(one.at[part], other.at[part]);
    return one;
}

VECTOR OF(Block) OF(with_bits)(OF(Block) block, unsigned char bits)
{
    EACH(part)
        block.at[part] = BITS(or)(block.at[part], BYTES(set1_epi8)((char)bits));
    return block;
}

/* Whether there is a control character. */
VECTOR bool OF(has_control)(OF(Block) block)
{
    OF(Vector) least = block.at[0];
    EACH(part)
        least = BYTES(min_epu8)(least, block.at[part]);
    return BYTES(movemask_epi8)(BYTES(cmpeq_epi8)(BYTES(min_epu8)(least, BYTES(set1_epi8)(0x1F)), least)) != 0;
}

#define Block OF(Block)
#define Flags OF(Flags)
#define load OF(load)
#define mask_of OF(mask_of)
#define any OF(any)
#define equal OF(equal)
#define from OF(from)
#define highest_bit OF(highest_bit)
#define either OF(either)
#define with_bits OF(with_bits)
#define has_control OF(has_control)
#define has_special OF(has_special)
#define reaching OF(reaching)
#define is_odd OF(is_odd)

/* Lead bytes that restrict the next byte, or are not valid: these characters are checked one by one. */
VECTOR bool has_special(Block block)
{
    const Flags two = equal(with_bits(block, 0x01), 0xC1), three = either(equal(block, 0xE0), equal(block, 0xED));
    return any(either(either(two, three), from(block, 0xF0)));
}

/* Returns the bytes of the last character in the next block, NO_TEXT if one is not valid. */
VECTOR uint64_t reaching(Bytes body, Block block, Py_ssize_t start, uint64_t reached)
{
    const uint64_t high = mask_of(highest_bit(block)), lead = mask_of(from(block, 0xC0));
    if (has_special(block))
        return past_characters(body, start, high, lead, reached);
    const uint64_t of_three = mask_of(from(block, 0xE0)), following = lead << 1 | of_three << 2 | reached;
    return following != (high & ~lead) ? NO_TEXT : lead >> 63 | of_three >> 62;
}

/* Whether a block has bytes that are not, or may not be, valid JSON.

   What can be told of any block is told of all: which of them have an escape, or a byte beyond ASCII, is not foreseen,
   and going a way that was not takes longer than all of this. */
VECTOR bool is_odd(Reader *reader, Carry *carry, Block block, Py_ssize_t start)
{
    reader->may_open |= is_open(reader->body, reader->opening, start, mask_of(equal(block, reader->opening.at[0])));
    const uint64_t backslashes = mask_of(equal(block, '\\')), signs = mask_of(equal(block, '"'));
    const uint64_t escapes = escaped(backslashes, &carry->escape), quotes = signs & ~escapes;
    /* Nearly all escapes are these. */
    const uint64_t plain = backslashes | signs | mask_of(either(equal(block, 'n'), equal(block, 't')));
    if ((escapes & ~plain) != 0 && are_no_escapes(reader, start, escapes & ~plain))
        return true;
    const uint64_t before = carry->inside, inside = quotes == 0 ? before : between(quotes) ^ before;
    carry->inside = (inside & LAST_BIT) != 0 ? UINT64_MAX : 0;
    if ((backslashes & ~inside) != 0)
        return true;
    carry->text = reaching(reader->body, block, start, carry->text);
    if (carry->text == NO_TEXT)
        return true;
    if (has_control(block) && (inside & ~mask_of(from(block, ' '))) != 0)
        return true;
    if (inside == UINT64_MAX && quotes == 0)
        return false;
    if (are_marks(reader->body, start, quotes & inside & (backslashes >> 1 | LAST_BIT)))
        return true;
    /* Setting one bit maps `[` and `]` to `{` and `}`, and no other byte. */
    const Block folded = with_bits(block, 0x20);
    const uint64_t brackets = mask_of(either(equal(folded, '{'), equal(folded, '}'))) & ~inside;
    const Turns turns = {quotes, brackets, inside, before != 0, carry->inside != 0};
    return reader->shortest > BLOCK ? strides_odd(reader, start, turns) : walks_odd(reader, start, turns);
}

static TARGET bool OF(are_odd)(Reader *reader)
{
    const Bytes body = reader->body;
    const Py_ssize_t rest = body.size % BLOCK, whole = body.size - rest;
    Carry carry = {0};
    for (Py_ssize_t start = 0; start < whole; start += BLOCK)
        if (is_odd(reader, &carry, load(body.at + start), start))
            return true;
    unsigned char last[BLOCK];
    memset(last, ' ', BLOCK);
    memcpy(last, body.at + whole, (size_t)rest);
    return is_odd(reader, &carry, load(last), whole) || carry.inside != 0 || carry.text != 0;
}

#undef Block
#undef Flags
#undef load
#undef mask_of
#undef any
#undef equal
#undef from
#undef highest_bit
#undef either
#undef with_bits
#undef has_control
#undef has_special
#undef reaching
#undef is_odd
#undef JOINED
#undef NAMED
#undef OF
#undef VECTOR
#undef BITS
#undef BYTES
#undef COUNT
#undef EACH
#undef WIDTH
#undef TARGET
