"""GGUF files that must be refused: one change each to a small good one."""

import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
NUMBER = {
    U8: "<B",
    I8: "<b",
    U16: "<H",
    I16: "<h",
    U32: "<I",
    I32: "<i",
    F32: "<f",
    BOOL: "<B",
    U64: "<Q",
    I64: "<q",
    F64: "<d",
}
EMBD, FF, HEADS, VOCAB = 32, 64, 4, 8


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(kind, data):
    if kind == STR:
        return text(data)
    if kind == ARR:
        element, items = data
        return struct.pack("<IQ", element, len(items)) + b"".join(value(element, i) for i in items)
    return struct.pack(NUMBER[kind], data)


class Gguf:
    """A GGUF file as lists that a case may change before it is written."""

    def __init__(self):
        self.magic, self.version, self.alignment = b"GGUF", 3, 32
        self.n_tensors = self.n_values = None  # None: count them
        self.values = [
            ["general.architecture", STR, "llama"],
            ["llama.block_count", U32, 1],
            ["llama.context_length", U32, 128],
            ["llama.embedding_length", U32, EMBD],
            ["llama.feed_forward_length", U32, FF],
            ["llama.attention.head_count", U32, HEADS],
            ["llama.attention.head_count_kv", U32, 2],
            ["llama.rope.dimension_count", U32, EMBD // HEADS],
            ["llama.rope.freq_base", F32, 10000.0],
            ["llama.attention.layer_norm_rms_epsilon", F32, 1e-5],
            ["tokenizer.ggml.model", STR, "llama"],
            [
                "tokenizer.ggml.tokens",
                ARR,
                (STR, ["<unk>", "<s>", "</s>", "a", "b", "c", "d", "e"]),
            ],
            ["tokenizer.ggml.scores", ARR, (F32, [0.0] * VOCAB)],
            ["tokenizer.ggml.token_type", ARR, (I32, [2, 3, 3, 1, 1, 1, 1, 1])],
            ["tokenizer.ggml.bos_token_id", U32, 1],
            ["tokenizer.ggml.eos_token_id", U32, 2],
        ]
        kv = EMBD // HEADS * 2
        self.tensors = [
            [name, list(dims), 0, None, None]
            for name, dims in (
                ("token_embd.weight", (EMBD, VOCAB)),
                ("output_norm.weight", (EMBD,)),
                ("blk.0.attn_norm.weight", (EMBD,)),
                ("blk.0.attn_q.weight", (EMBD, EMBD)),
                ("blk.0.attn_k.weight", (EMBD, kv)),
                ("blk.0.attn_v.weight", (EMBD, kv)),
                ("blk.0.attn_output.weight", (EMBD, EMBD)),
                ("blk.0.ffn_norm.weight", (EMBD,)),
                ("blk.0.ffn_gate.weight", (EMBD, FF)),
                ("blk.0.ffn_up.weight", (EMBD, FF)),
                ("blk.0.ffn_down.weight", (FF, EMBD)),
            )
        ]
        self.cut = None  # keep only that many bytes
        self.raw_values = b""  # appended to the values as it is

    def set(self, key, kind, data):
        for entry in self.values:
            if entry[0] == key:
                entry[1:] = [kind, data]
                return
        self.values.append([key, kind, data])

    def drop(self, key):
        self.values = [entry for entry in self.values if entry[0] != key]

    def tensor(self, name):
        return next(t for t in self.tensors if t[0] == name)

    def write(self, path):
        n_values = (
            self.n_values if self.n_values is not None else len(self.values) + bool(self.raw_values)
        )
        n_tensors = self.n_tensors if self.n_tensors is not None else len(self.tensors)
        out = self.magic + struct.pack("<IQQ", self.version, n_tensors, n_values)
        for key, kind, data in self.values:
            out += text(key) + struct.pack("<I", kind) + value(kind, data)
        out += self.raw_values
        end, data = 0, b""
        for name, dims, kind, offset, n_dims in self.tensors:
            here = end if offset is None else offset
            out += text(name) + struct.pack("<I", len(dims) if n_dims is None else n_dims)
            out += b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", kind, here)
            count = 1
            for d in dims:
                count *= d
            size = 4 * count if count < 1 << 16 else 0
            end = (end + size + self.alignment - 1) // self.alignment * self.alignment
            data = data.ljust(end, b"\0")
        out = (
            out.ljust((len(out) + self.alignment - 1) // self.alignment * self.alignment, b"\0")
            + data
        )
        with open(path, "wb") as file:
            file.write(out if self.cut is None else out[: self.cut])


def array_header(key, element, count):
    """An array whose elements do not follow."""
    return text(key) + struct.pack("<IIQ", ARR, element, count)


def gguf_cases():
    """Yields (name, message piece, change)."""

    def attribute(**changes):
        return lambda g: [setattr(g, k, v) for k, v in changes.items()]

    def setting(key, kind, data):
        return lambda g: g.set(key, kind, data)

    def tensor(name, index, data):
        return lambda g: g.tensor(name).__setitem__(index, data)

    q = "blk.0.attn_q.weight"
    tokens = "tokenizer.ggml.tokens"
    words = ["<unk>", "<s>", "</s>", "a", "b", "c", "d", "e"]
    nested = text("x") + struct.pack("<IIQ", ARR, ARR, 1) + struct.pack("<IQ", U8, 0)
    deep = text("x") + struct.pack("<I", ARR) + struct.pack("<IQ", ARR, 1) * 100000
    return [
        ("good", "", lambda g: None),
        ("empty_file", "too few for a GGUF header", attribute(cut=0)),
        ("header_only_half", "too few for a GGUF header", attribute(cut=15)),
        ("wrong_magic", "does not start with 'GGUF'", attribute(magic=b"GGML")),
        ("version_1", "GGUF version is 1; expected 2 or 3", attribute(version=1)),
        ("version_4", "GGUF version is 4", attribute(version=4)),
        ("big_endian", "big-endian", attribute(version=0x03000000)),
        (
            "tensor_count_2_61",
            "announces 2305843009213693952 tensors",
            attribute(n_tensors=1 << 61),
        ),
        (
            "tensor_count_negative",
            "announces 18446744073709551615 tensors",
            attribute(n_tensors=(1 << 64) - 1),
        ),
        (
            "value_count_2_61",
            "announces 2305843009213693952 metadata values",
            attribute(n_values=1 << 61),
        ),
        ("value_count_too_many", "at byte", attribute(n_values=40)),
        ("truncated_in_values", "at byte", attribute(cut=300)),
        ("truncated_in_tensors", "at byte", attribute(cut=1200)),
        ("truncated_in_data", "is it truncated?", attribute(cut=8000)),
        (
            "key_length_2_63",
            "a metadata key says it is 9223372036854775808 bytes long",
            lambda g: setattr(g, "raw_values", struct.pack("<Q", 1 << 63)),
        ),
        ("key_empty", "is empty", setting("", U32, 1)),
        ("key_twice", "appears twice", lambda g: g.values.append(["llama.block_count", U32, 1])),
        (
            "string_length_past_end",
            "bytes long",
            lambda g: setattr(g, "raw_values", text("x") + struct.pack("<IQ", STR, 1 << 40)),
        ),
        (
            "value_type_13",
            "value type of key 'x' is 13",
            lambda g: setattr(g, "raw_values", text("x") + struct.pack("<II", 13, 0)),
        ),
        (
            "array_type_99",
            "element type of key 'x' is 99",
            lambda g: setattr(g, "raw_values", text("x") + struct.pack("<IIQ", ARR, 99, 1)),
        ),
        ("array_nested", "array of arrays", lambda g: setattr(g, "raw_values", nested)),
        ("array_nested_deep", "array of arrays", lambda g: setattr(g, "raw_values", deep)),
        (
            "array_count_2_62",
            "4611686018427387904 elements of type u32",
            lambda g: setattr(g, "raw_values", array_header("x", U32, 1 << 62)),
        ),
        (
            "array_count_wraps",
            "elements of type u64",
            lambda g: setattr(g, "raw_values", array_header("x", U64, 1 << 61)),
        ),
        (
            "strings_count_2_61",
            "elements of type string",
            lambda g: setattr(g, "raw_values", array_header("x", STR, 1 << 61)),
        ),
        (
            "alignment_huge",
            "general.alignment is 2147483648",
            setting("general.alignment", U32, 0x80000000),
        ),
        ("alignment_zero", "general.alignment is 0", setting("general.alignment", U32, 0)),
        ("alignment_odd", "general.alignment is 48", setting("general.alignment", U32, 48)),
        ("alignment_type", "general.alignment has type u64", setting("general.alignment", U64, 32)),
        (
            "tokens_are_numbers",
            "tokenizer.ggml.tokens is an array of u8",
            setting(tokens, ARR, (U8, [0] * VOCAB)),
        ),
        (
            "tokens_is_string",
            "tokenizer.ggml.tokens is a single string",
            setting(tokens, STR, "abc"),
        ),
        (
            "tokens_repeat",
            "repeats an earlier token",
            setting(tokens, ARR, (STR, words[:7] + ["a"])),
        ),
        ("tokens_empty_text", "token 7 is empty", setting(tokens, ARR, (STR, words[:7] + [""]))),
        ("tokens_missing", "expected one for each of the 0 tokens", lambda g: g.drop(tokens)),
        (
            "scores_are_u8",
            "tokenizer.ggml.scores is an array of u8",
            setting("tokenizer.ggml.scores", ARR, (U8, [0] * VOCAB)),
        ),
        (
            "scores_too_few",
            "tokenizer.ggml.scores has 3 elements",
            setting("tokenizer.ggml.scores", ARR, (F32, [0.0] * 3)),
        ),
        (
            "types_are_f32",
            "tokenizer.ggml.token_type is an array of f32",
            setting("tokenizer.ggml.token_type", ARR, (F32, [0.0] * VOCAB)),
        ),
        (
            "types_too_many",
            "tokenizer.ggml.token_type has 9 elements",
            setting("tokenizer.ggml.token_type", ARR, (I32, [1] * 9)),
        ),
        (
            "merges_are_u32",
            "tokenizer.ggml.merges is an array of u32",
            setting("tokenizer.ggml.merges", ARR, (U32, [1])),
        ),
        (
            "bos_outside",
            "tokenizer.ggml.bos_token_id must be",
            setting("tokenizer.ggml.bos_token_id", U32, VOCAB),
        ),
        (
            "eos_is_text",
            "tokenizer.ggml.eos_token_id must be",
            setting("tokenizer.ggml.eos_token_id", STR, "2"),
        ),
        (
            "tokenizer_kind",
            "tokenizer.ggml.model is 't5'",
            setting("tokenizer.ggml.model", STR, "t5"),
        ),
        (
            "merges_missing",
            "tokenizer.ggml.merges' is missing",
            setting("tokenizer.ggml.model", STR, "gpt2"),
        ),
        ("dims_0", "has 0 dimensions", lambda g: (tensor(q, 1, [])(g))),
        ("dims_5", "has 5 dimensions", lambda g: (tensor(q, 1, [EMBD, EMBD, 1, 1, 1])(g))),
        ("dims_2_32", "has 4294967295 dimensions", tensor(q, 4, 0xFFFFFFFF)),
        ("dim_zero", "dimension 1 is 0", tensor(q, 1, [EMBD, 0])),
        ("shape_product_wraps", "the product must be", tensor(q, 1, [1 << 32, 1 << 32])),
        ("shape_product_wraps_to_small", "the product must be", tensor(q, 1, [1 << 62, 4, 4, 4])),
        ("shape_negative", "the product must be", tensor(q, 1, [(1 << 64) - 32, 1])),
        ("bytes_wrap", "more than 2^63 bytes", tensor(q, 1, [1 << 62, 1])),
        ("bytes_wrap_when_padded", "bytes", tensor(q, 1, [(1 << 61) - 1, 1])),
        ("shape_too_long", "is it truncated?", tensor(q, 1, [EMBD, 1 << 30])),
        ("type_unknown", "has type 1000, which ggml does not know", tensor(q, 2, 1000)),
        ("type_removed", "has type 4, which ggml does not know", tensor(q, 2, 4)),
        ("type_block", "needs a multiple of 256", tensor(q, 2, 12)),
        (
            "type_no_weights",
            "holds no weights",
            lambda g: (
                setattr(
                    g,
                    "tensors",
                    g.tensors[:-1] + [["blk.0.ffn_down.weight", [FF, EMBD], 26, None, None]],
                )
            ),
        ),
        ("offset_past_end", "is it truncated?", tensor("blk.0.ffn_down.weight", 3, 1 << 40)),
        ("offset_wraps", "is it truncated?", tensor("blk.0.ffn_down.weight", 3, (1 << 64) - 32)),
        ("offset_unaligned", "expected a multiple of 32", tensor("blk.0.ffn_down.weight", 3, 33)),
        ("offset_overlaps", "overlaps", tensor("blk.0.ffn_down.weight", 3, 0)),
        ("offset_leaves_hole", "leaves a hole", tensor("blk.0.attn_k.weight", 3, 5408)),
        ("tensor_twice", "appears twice", tensor("blk.0.attn_k.weight", 0, q)),
        ("tensor_name_long", "a tensor name says it is 100 bytes", tensor(q, 0, "x" * 100)),
        ("tensor_missing", "tensor 'blk.0.attn_q.weight' is missing", tensor(q, 0, "other.weight")),
        ("tensor_shape", "is 16 x 32; expected 32 x 32", tensor(q, 1, [EMBD, 16])),
        (
            "vocabulary_size",
            "rows; expected one for each of the 8 tokens",
            tensor("token_embd.weight", 1, [EMBD, 4]),
        ),
        (
            "bias_unknown",
            "is not part of this model family",
            lambda g: g.tensors.append(["blk.0.ffn_up.bias", [FF], 0, None, None]),
        ),
        (
            "architecture",
            "general.architecture is 'gpt9'",
            setting("general.architecture", STR, "gpt9"),
        ),
        ("architecture_type", "must be a string", setting("general.architecture", U32, 1)),
        (
            "architecture_missing",
            "'general.architecture' is missing",
            lambda g: g.drop("general.architecture"),
        ),
        ("layers_zero", "'llama.block_count' is 0", setting("llama.block_count", U32, 0)),
        (
            "layers_2_32",
            "'llama.block_count' is 4294967295",
            setting("llama.block_count", U32, 0xFFFFFFFF),
        ),
        ("layers_is_text", "wrong type", setting("llama.block_count", STR, "1")),
        ("layers_missing", "'llama.block_count' is missing", lambda g: g.drop("llama.block_count")),
        (
            "heads_zero",
            "'llama.attention.head_count' is 0",
            setting("llama.attention.head_count", U32, 0),
        ),
        ("heads_list", "wrong type", setting("llama.attention.head_count", ARR, (U32, [4]))),
        (
            "heads_uneven",
            "cannot be shared evenly",
            setting("llama.attention.head_count_kv", U32, 3),
        ),
        (
            "kv_heads_more",
            "the number of KV heads is 8",
            setting("llama.attention.head_count_kv", U32, 8),
        ),
        (
            "rotary_wider_than_head",
            "the rotary size is 16",
            setting("llama.rope.dimension_count", U32, 16),
        ),
        ("rotary_odd", "must be even", setting("llama.rope.dimension_count", U32, 5)),
        (
            "eps_nan",
            "layer_norm_rms_epsilon' is nan",
            setting("llama.attention.layer_norm_rms_epsilon", F32, float("nan")),
        ),
        (
            "eps_missing",
            "layer_norm_rms_epsilon' is missing",
            lambda g: g.drop("llama.attention.layer_norm_rms_epsilon"),
        ),
        (
            "rope_base_zero",
            "'llama.rope.freq_base' is 0",
            setting("llama.rope.freq_base", F32, 0.0),
        ),
        ("experts", "mixture-of-experts", setting("llama.expert_count", U32, 8)),
        ("split", "one part of a split model", setting("split.count", U16, 2)),
        (
            "rope_scaling_kind",
            "rope.scaling.type is 'longrope'",
            setting("llama.rope.scaling.type", STR, "longrope"),
        ),
    ]
