#!/usr/bin/env python3
"""Writes model files that must be refused, each with a piece of the message it must be refused with.

usage: bad_models.py FOLDER
Creates FOLDER/<case>.gguf, FOLDER/<case>/ (HuggingFace folders) and FOLDER/expected.tsv (path, tab, message piece).
Each case is one change to a small model that is otherwise good; the two good ones are written too, with an empty piece.
"""
import json
import os
import struct
import sys

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
NUMBER = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<B", U64: "<Q", I64: "<q",
          F64: "<d"}
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
            ["general.architecture", STR, "llama"], ["llama.block_count", U32, 1], ["llama.context_length", U32, 128],
            ["llama.embedding_length", U32, EMBD], ["llama.feed_forward_length", U32, FF],
            ["llama.attention.head_count", U32, HEADS], ["llama.attention.head_count_kv", U32, 2],
            ["llama.rope.dimension_count", U32, EMBD // HEADS], ["llama.rope.freq_base", F32, 10000.0],
            ["llama.attention.layer_norm_rms_epsilon", F32, 1e-5], ["tokenizer.ggml.model", STR, "llama"],
            ["tokenizer.ggml.tokens", ARR, (STR, ["<unk>", "<s>", "</s>", "a", "b", "c", "d", "e"])],
            ["tokenizer.ggml.scores", ARR, (F32, [0.0] * VOCAB)],
            ["tokenizer.ggml.token_type", ARR, (I32, [2, 3, 3, 1, 1, 1, 1, 1])],
            ["tokenizer.ggml.bos_token_id", U32, 1], ["tokenizer.ggml.eos_token_id", U32, 2]]
        kv = EMBD // HEADS * 2
        self.tensors = [[name, list(dims), 0, None, None] for name, dims in (
            ("token_embd.weight", (EMBD, VOCAB)), ("output_norm.weight", (EMBD,)), ("blk.0.attn_norm.weight", (EMBD,)),
            ("blk.0.attn_q.weight", (EMBD, EMBD)), ("blk.0.attn_k.weight", (EMBD, kv)),
            ("blk.0.attn_v.weight", (EMBD, kv)), ("blk.0.attn_output.weight", (EMBD, EMBD)),
            ("blk.0.ffn_norm.weight", (EMBD,)), ("blk.0.ffn_gate.weight", (EMBD, FF)),
            ("blk.0.ffn_up.weight", (EMBD, FF)), ("blk.0.ffn_down.weight", (FF, EMBD)))]
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
        n_values = self.n_values if self.n_values is not None else len(self.values) + bool(self.raw_values)
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
        out = out.ljust((len(out) + self.alignment - 1) // self.alignment * self.alignment, b"\0") + data
        with open(path, "wb") as file:
            file.write(out if self.cut is None else out[:self.cut])


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
        ("tensor_count_2_61", "announces 2305843009213693952 tensors", attribute(n_tensors=1 << 61)),
        ("tensor_count_negative", "announces 18446744073709551615 tensors", attribute(n_tensors=(1 << 64) - 1)),
        ("value_count_2_61", "announces 2305843009213693952 metadata values", attribute(n_values=1 << 61)),
        ("value_count_too_many", "at byte", attribute(n_values=40)),
        ("truncated_in_values", "at byte", attribute(cut=300)),
        ("truncated_in_tensors", "at byte", attribute(cut=1200)),
        ("truncated_in_data", "is it truncated?", attribute(cut=8000)),
        ("key_length_2_63", "a metadata key says it is 9223372036854775808 bytes long",
         lambda g: setattr(g, "raw_values", struct.pack("<Q", 1 << 63))),
        ("key_empty", "is empty", setting("", U32, 1)),
        ("key_twice", "appears twice", lambda g: g.values.append(["llama.block_count", U32, 1])),
        ("string_length_past_end", "bytes long", lambda g: setattr(
            g, "raw_values", text("x") + struct.pack("<IQ", STR, 1 << 40))),
        ("value_type_13", "value type of key 'x' is 13", lambda g: setattr(
            g, "raw_values", text("x") + struct.pack("<II", 13, 0))),
        ("array_type_99", "element type of key 'x' is 99", lambda g: setattr(
            g, "raw_values", text("x") + struct.pack("<IIQ", ARR, 99, 1))),
        ("array_nested", "array of arrays", lambda g: setattr(g, "raw_values", nested)),
        ("array_nested_deep", "array of arrays", lambda g: setattr(g, "raw_values", deep)),
        ("array_count_2_62", "4611686018427387904 elements of type u32", lambda g: setattr(
            g, "raw_values", array_header("x", U32, 1 << 62))),
        ("array_count_wraps", "elements of type u64", lambda g: setattr(
            g, "raw_values", array_header("x", U64, 1 << 61))),
        ("strings_count_2_61", "elements of type string", lambda g: setattr(
            g, "raw_values", array_header("x", STR, 1 << 61))),
        ("alignment_huge", "general.alignment is 2147483648", setting("general.alignment", U32, 0x80000000)),
        ("alignment_zero", "general.alignment is 0", setting("general.alignment", U32, 0)),
        ("alignment_odd", "general.alignment is 48", setting("general.alignment", U32, 48)),
        ("alignment_type", "general.alignment has type u64", setting("general.alignment", U64, 32)),
        ("tokens_are_numbers", "tokenizer.ggml.tokens is an array of u8", setting(tokens, ARR, (U8, [0] * VOCAB))),
        ("tokens_is_string", "tokenizer.ggml.tokens is a single string", setting(tokens, STR, "abc")),
        ("tokens_repeat", "repeats an earlier token", setting(tokens, ARR, (STR, words[:7] + ["a"]))),
        ("tokens_empty_text", "token 7 is empty", setting(tokens, ARR, (STR, words[:7] + [""]))),
        ("tokens_missing", "expected one for each of the 0 tokens", lambda g: g.drop(tokens)),
        ("scores_are_u8", "tokenizer.ggml.scores is an array of u8",
         setting("tokenizer.ggml.scores", ARR, (U8, [0] * VOCAB))),
        ("scores_too_few", "tokenizer.ggml.scores has 3 elements",
         setting("tokenizer.ggml.scores", ARR, (F32, [0.0] * 3))),
        ("types_are_f32", "tokenizer.ggml.token_type is an array of f32",
         setting("tokenizer.ggml.token_type", ARR, (F32, [0.0] * VOCAB))),
        ("types_too_many", "tokenizer.ggml.token_type has 9 elements",
         setting("tokenizer.ggml.token_type", ARR, (I32, [1] * 9))),
        ("merges_are_u32", "tokenizer.ggml.merges is an array of u32",
         setting("tokenizer.ggml.merges", ARR, (U32, [1]))),
        ("bos_outside", "tokenizer.ggml.bos_token_id must be", setting("tokenizer.ggml.bos_token_id", U32, VOCAB)),
        ("eos_is_text", "tokenizer.ggml.eos_token_id must be", setting("tokenizer.ggml.eos_token_id", STR, "2")),
        ("tokenizer_kind", "tokenizer.ggml.model is 't5'", setting("tokenizer.ggml.model", STR, "t5")),
        ("merges_missing", "tokenizer.ggml.merges' is missing", setting("tokenizer.ggml.model", STR, "gpt2")),
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
        ("type_no_weights", "holds no weights", lambda g: (
            setattr(g, "tensors", g.tensors[:-1] + [["blk.0.ffn_down.weight", [FF, EMBD], 26, None, None]]))),
        ("offset_past_end", "is it truncated?", tensor("blk.0.ffn_down.weight", 3, 1 << 40)),
        ("offset_wraps", "is it truncated?", tensor("blk.0.ffn_down.weight", 3, (1 << 64) - 32)),
        ("offset_unaligned", "expected a multiple of 32", tensor("blk.0.ffn_down.weight", 3, 33)),
        ("offset_overlaps", "overlaps", tensor("blk.0.ffn_down.weight", 3, 0)),
        ("offset_leaves_hole", "leaves a hole", tensor("blk.0.attn_k.weight", 3, 5408)),
        ("tensor_twice", "appears twice", tensor("blk.0.attn_k.weight", 0, q)),
        ("tensor_name_long", "a tensor name says it is 100 bytes", tensor(q, 0, "x" * 100)),
        ("tensor_missing", "tensor 'blk.0.attn_q.weight' is missing", tensor(q, 0, "other.weight")),
        ("tensor_shape", "is 16 x 32; expected 32 x 32", tensor(q, 1, [EMBD, 16])),
        ("vocabulary_size", "rows; expected one for each of the 8 tokens", tensor("token_embd.weight", 1, [EMBD, 4])),
        ("bias_unknown", "is not part of this model family",
         lambda g: g.tensors.append(["blk.0.ffn_up.bias", [FF], 0, None, None])),
        ("architecture", "general.architecture is 'gpt9'", setting("general.architecture", STR, "gpt9")),
        ("architecture_type", "must be a string", setting("general.architecture", U32, 1)),
        ("architecture_missing", "'general.architecture' is missing", lambda g: g.drop("general.architecture")),
        ("layers_zero", "'llama.block_count' is 0", setting("llama.block_count", U32, 0)),
        ("layers_2_32", "'llama.block_count' is 4294967295", setting("llama.block_count", U32, 0xFFFFFFFF)),
        ("layers_is_text", "wrong type", setting("llama.block_count", STR, "1")),
        ("layers_missing", "'llama.block_count' is missing", lambda g: g.drop("llama.block_count")),
        ("heads_zero", "'llama.attention.head_count' is 0", setting("llama.attention.head_count", U32, 0)),
        ("heads_list", "wrong type", setting("llama.attention.head_count", ARR, (U32, [4]))),
        ("heads_uneven", "cannot be shared evenly", setting("llama.attention.head_count_kv", U32, 3)),
        ("kv_heads_more", "the number of KV heads is 8", setting("llama.attention.head_count_kv", U32, 8)),
        ("rotary_wider_than_head", "the rotary size is 16", setting("llama.rope.dimension_count", U32, 16)),
        ("rotary_odd", "must be even", setting("llama.rope.dimension_count", U32, 5)),
        ("eps_nan", "layer_norm_rms_epsilon' is nan",
         setting("llama.attention.layer_norm_rms_epsilon", F32, float("nan"))),
        ("eps_missing", "layer_norm_rms_epsilon' is missing",
         lambda g: g.drop("llama.attention.layer_norm_rms_epsilon")),
        ("rope_base_zero", "'llama.rope.freq_base' is 0", setting("llama.rope.freq_base", F32, 0.0)),
        ("experts", "mixture-of-experts", setting("llama.expert_count", U32, 8)),
        ("split", "one part of a split model", setting("split.count", U16, 2)),
        ("rope_scaling_kind", "rope.scaling.type is 'longrope'", setting("llama.rope.scaling.type", STR, "longrope")),
    ]


CONFIG = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 16,
          "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 8, "max_position_embeddings": 64,
          "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
SHAPES = {"model.embed_tokens.weight": [8, 8], "model.norm.weight": [8], "model.layers.0.input_layernorm.weight": [8],
          "model.layers.0.post_attention_layernorm.weight": [8], "model.layers.0.self_attn.q_proj.weight": [8, 8],
          "model.layers.0.self_attn.k_proj.weight": [4, 8], "model.layers.0.self_attn.v_proj.weight": [4, 8],
          "model.layers.0.self_attn.o_proj.weight": [8, 8], "model.layers.0.mlp.gate_proj.weight": [16, 8],
          "model.layers.0.mlp.up_proj.weight": [16, 8], "model.layers.0.mlp.down_proj.weight": [8, 16]}
NORM = "model.norm.weight"


class Folder:
    """A HuggingFace folder that a case may change before it is written."""

    def __init__(self):
        self.config, self.header, end = dict(CONFIG), {}, 0
        for name, shape in SHAPES.items():
            size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            self.header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
            end += size
        self.data = b"\0" * end
        self.header_text = self.header_length = self.config_text = self.index = None
        self.file = "model.safetensors"

    def write(self, path):
        os.makedirs(path)
        config = json.dumps(self.config) if self.config_text is None else self.config_text
        with open(os.path.join(path, "config.json"), "w") as file:
            file.write(config)
        header = (json.dumps(self.header) if self.header_text is None else self.header_text).encode()
        length = len(header) if self.header_length is None else self.header_length
        with open(os.path.join(path, self.file), "wb") as file:
            file.write(struct.pack("<Q", length) + header + self.data)
        if self.index is not None:
            with open(os.path.join(path, "model.safetensors.index.json"), "w") as file:
                file.write(self.index)


def folder_cases():
    """Yields (name, message piece, change)."""
    def attribute(**changes):
        return lambda f: [setattr(f, k, v) for k, v in changes.items()]

    def field(name, key, data):
        return lambda f: f.header[name].__setitem__(key, data)

    def config(key, data):
        return lambda f: f.config.__setitem__(key, data)

    entry = '"%s": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}'
    many = "{" + ",".join(entry % f"t{i}" for i in range(100000)) + "}"
    return [
        ("hf_good", "", lambda f: None),
        ("hf_header_length", "the header says it is 18446744073709551615 bytes", attribute(header_length=(1 << 64) - 1)),
        ("hf_header_200_mb", "the header says it is 200000000 bytes", attribute(header_length=200000000)),
        ("hf_header_past_end", "bytes long", attribute(header_length=100000)),
        ("hf_header_empty", "the header says it is 0 bytes", attribute(header_text="")),
        ("hf_header_no_brace", "does not start with '{'", attribute(header_text="[1,2]")),
        ("hf_header_not_json", "not valid JSON", attribute(header_text='{"a": {"dtype"')),
        ("hf_header_deep", "an array where the format has none", attribute(header_text='{"a":' + "[" * 100000)),
        ("hf_header_deep_objects", "an object where the format has none",
         attribute(header_text='{"a":' * 100000)),
        ("hf_header_many", "more than 65536 tensors", attribute(header_text=many)),
        ("hf_tensor_twice", "appears twice",
         attribute(header_text="{" + entry % "a" + "," + entry % "a" + "}")),
        ("hf_field_twice", "has two fields 'dtype'",
         attribute(header_text='{"a": {"dtype": "F32", "dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}')),
        ("hf_field_missing", "must have exactly",
         attribute(header_text='{"a": {"dtype": "F32", "data_offsets": [0, 4]}}')),
        ("hf_shape_negative", "a negative number", field(NORM, "shape", [-8])),
        ("hf_shape_fraction", "a fraction", field(NORM, "shape", [8.5])),
        ("hf_shape_wraps", "more than 2^63 bytes", field(NORM, "shape", [1 << 62, 1 << 62])),
        ("hf_shape_wraps_to_zero", "more than 2^63 bytes", field(NORM, "shape", [1 << 32, 1 << 32])),
        ("hf_shape_differs", "its shape and dtype need 36 bytes", field(NORM, "shape", [9])),
        ("hf_shape_many", "more than 8 numbers", field(NORM, "shape", [1] * 9)),
        ("hf_dtype_unknown", "unknown dtype 'F33'", field(NORM, "dtype", "F33")),
        ("hf_dtype_integer", "has dtype I32; expected", field(NORM, "dtype", "I32")),
        ("hf_offsets_swapped", "has data_offsets", lambda f: f.header[NORM]["data_offsets"].reverse()),
        ("hf_offsets_past_end", "expected", field(NORM, "data_offsets", [1 << 40, (1 << 40) + 32])),
        ("hf_offsets_overlap", "overlaps its neighbour", field(NORM, "data_offsets", [0, 32])),
        ("hf_hole", "there is a hole", lambda f: f.header.pop(NORM)),
        ("hf_trailing", "4 bytes after the last tensor", lambda f: setattr(f, "data", f.data + b"abcd")),
        ("hf_truncated", "is the file truncated?", lambda f: setattr(f, "data", f.data[:-1])),
        ("hf_tensor_unknown", "is not part of a model family",
         lambda f: f.header.__setitem__("evil", f.header.pop(NORM))),
        ("hf_config_not_json", "not valid JSON", attribute(config_text="{")),
        ("hf_config_list", "expected a JSON object", attribute(config_text="[]")),
        ("hf_config_deep", "nested deeper than 64", attribute(config_text="[" * 100000)),
        ("hf_config_twice", "appears twice", attribute(config_text='{"model_type": "llama", "model_type": "x"}')),
        ("hf_config_type", "model_type is 'bert'", config("model_type", "bert")),
        ("hf_config_layers_text", "'num_hidden_layers' is \"one\"", config("num_hidden_layers", "one")),
        ("hf_config_layers_huge", "number overflow", lambda f: setattr(
            f, "config_text", json.dumps(f.config).replace('"num_hidden_layers": 1', '"num_hidden_layers": 1e400'))),
        ("hf_config_layers_more", "'blk.1.attn_norm.weight' is missing", config("num_hidden_layers", 2)),
        ("hf_config_heads_uneven", "cannot be shared evenly", lambda f: f.config.update(
            num_attention_heads=3, num_key_value_heads=2, head_dim=2)),
        ("hf_config_quantised", "quantised HuggingFace folders", config("quantization_config", {"bits": 4})),
        ("hf_config_rope", "RoPE scaling 'dynamic' is not supported",
         config("rope_scaling", {"type": "dynamic", "factor": 2.0})),
        ("hf_index_outside", "must name a .safetensors file in the same folder",
         attribute(index='{"weight_map": {"a": "../model.safetensors"}}')),
        ("hf_index_missing_file", "cannot be opened", attribute(index='{"weight_map": {"a": "b.safetensors"}}')),
        ("hf_index_no_map", "'weight_map' is missing", attribute(index="{}")),
        ("hf_pickle_only", "never opened", attribute(file="pytorch_model.bin")),
        ("hf_no_weights", "no .safetensors file here", attribute(file="weights.txt")),
    ]


def main(folder):
    lines = []
    for name, piece, change in gguf_cases():
        model, path = Gguf(), os.path.join(folder, name + ".gguf")
        change(model)
        model.write(path)
        lines.append(f"{path}\t{piece}\n")
    for name, piece, change in folder_cases():
        model, path = Folder(), os.path.join(folder, name)
        change(model)
        model.write(path)
        lines.append(f"{path}\t{piece}\n")
    for name in ("weights.bin", "weights.pt", "weights.pkl"):
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(b"\x80\x02}q\0.")
        lines.append(f"{path}\tpickled weights can run code\n")
    with open(os.path.join(folder, "expected.tsv"), "w") as file:
        file.writelines(lines)


if __name__ == "__main__":
    main(sys.argv[1])
