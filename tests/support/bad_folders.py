"""HuggingFace folders that must be refused: one change each to a small good one."""

import json
import os
import struct

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
SHAPES = {
    "model.embed_tokens.weight": [8, 8],
    "model.norm.weight": [8],
    "model.layers.0.input_layernorm.weight": [8],
    "model.layers.0.post_attention_layernorm.weight": [8],
    "model.layers.0.self_attn.q_proj.weight": [8, 8],
    "model.layers.0.self_attn.k_proj.weight": [4, 8],
    "model.layers.0.self_attn.v_proj.weight": [4, 8],
    "model.layers.0.self_attn.o_proj.weight": [8, 8],
    "model.layers.0.mlp.gate_proj.weight": [16, 8],
    "model.layers.0.mlp.up_proj.weight": [16, 8],
    "model.layers.0.mlp.down_proj.weight": [8, 16],
}
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
        header = (
            json.dumps(self.header) if self.header_text is None else self.header_text
        ).encode()
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
        (
            "hf_header_length",
            "the header says it is 18446744073709551615 bytes",
            attribute(header_length=(1 << 64) - 1),
        ),
        (
            "hf_header_200_mb",
            "the header says it is 200000000 bytes",
            attribute(header_length=200000000),
        ),
        ("hf_header_past_end", "bytes long", attribute(header_length=100000)),
        ("hf_header_empty", "the header says it is 0 bytes", attribute(header_text="")),
        ("hf_header_no_brace", "does not start with '{'", attribute(header_text="[1,2]")),
        ("hf_header_not_json", "not valid JSON", attribute(header_text='{"a": {"dtype"')),
        (
            "hf_header_deep",
            "an array where the format has none",
            attribute(header_text='{"a":' + "[" * 100000),
        ),
        (
            "hf_header_deep_objects",
            "an object where the format has none",
            attribute(header_text='{"a":' * 100000),
        ),
        ("hf_header_many", "more than 65536 tensors", attribute(header_text=many)),
        (
            "hf_tensor_twice",
            "appears twice",
            attribute(header_text="{" + entry % "a" + "," + entry % "a" + "}"),
        ),
        (
            "hf_field_twice",
            "has two fields 'dtype'",
            attribute(
                header_text='{"a": {"dtype": "F32", "dtype": "F32", "shape": [1], '
                '"data_offsets": [0, 4]}}'
            ),
        ),
        (
            "hf_field_missing",
            "must have exactly",
            attribute(header_text='{"a": {"dtype": "F32", "data_offsets": [0, 4]}}'),
        ),
        ("hf_shape_negative", "a negative number", field(NORM, "shape", [-8])),
        ("hf_shape_fraction", "a fraction", field(NORM, "shape", [8.5])),
        ("hf_shape_wraps", "more than 2^63 bytes", field(NORM, "shape", [1 << 62, 1 << 62])),
        (
            "hf_shape_wraps_to_zero",
            "more than 2^63 bytes",
            field(NORM, "shape", [1 << 32, 1 << 32]),
        ),
        ("hf_shape_differs", "its shape and dtype need 36 bytes", field(NORM, "shape", [9])),
        ("hf_shape_many", "more than 8 numbers", field(NORM, "shape", [1] * 9)),
        ("hf_dtype_unknown", "unknown dtype 'F33'", field(NORM, "dtype", "F33")),
        ("hf_dtype_integer", "has dtype I32; expected", field(NORM, "dtype", "I32")),
        (
            "hf_offsets_swapped",
            "has data_offsets",
            lambda f: f.header[NORM]["data_offsets"].reverse(),
        ),
        ("hf_offsets_past_end", "expected", field(NORM, "data_offsets", [1 << 40, (1 << 40) + 32])),
        ("hf_offsets_overlap", "overlaps its neighbour", field(NORM, "data_offsets", [0, 32])),
        ("hf_hole", "there is a hole", lambda f: f.header.pop(NORM)),
        (
            "hf_trailing",
            "4 bytes after the last tensor",
            lambda f: setattr(f, "data", f.data + b"abcd"),
        ),
        ("hf_truncated", "is the file truncated?", lambda f: setattr(f, "data", f.data[:-1])),
        (
            "hf_tensor_unknown",
            "is not part of a model family",
            lambda f: f.header.__setitem__("evil", f.header.pop(NORM)),
        ),
        ("hf_config_not_json", "not valid JSON", attribute(config_text="{")),
        ("hf_config_list", "expected a JSON object", attribute(config_text="[]")),
        ("hf_config_deep", "nested deeper than 64", attribute(config_text="[" * 100000)),
        (
            "hf_config_twice",
            "appears twice",
            attribute(config_text='{"model_type": "llama", "model_type": "x"}'),
        ),
        ("hf_config_type", "model_type is 'bert'", config("model_type", "bert")),
        (
            "hf_config_layers_text",
            "'num_hidden_layers' is \"one\"",
            config("num_hidden_layers", "one"),
        ),
        (
            "hf_config_layers_huge",
            "number overflow",
            lambda f: setattr(
                f,
                "config_text",
                json.dumps(f.config).replace(
                    '"num_hidden_layers": 1', '"num_hidden_layers": 1e400'
                ),
            ),
        ),
        (
            "hf_config_layers_more",
            "'blk.1.attn_norm.weight' is missing",
            config("num_hidden_layers", 2),
        ),
        (
            "hf_config_heads_uneven",
            "cannot be shared evenly",
            lambda f: f.config.update(num_attention_heads=3, num_key_value_heads=2, head_dim=2),
        ),
        (
            "hf_config_quantised",
            "quantised HuggingFace folders",
            config("quantization_config", {"bits": 4}),
        ),
        (
            "hf_config_rope",
            "RoPE scaling 'dynamic' is not supported",
            config("rope_scaling", {"type": "dynamic", "factor": 2.0}),
        ),
        (
            "hf_index_outside",
            "must name a .safetensors file in the same folder",
            attribute(index='{"weight_map": {"a": "../model.safetensors"}}'),
        ),
        (
            "hf_index_missing_file",
            "cannot be opened",
            attribute(index='{"weight_map": {"a": "b.safetensors"}}'),
        ),
        ("hf_index_no_map", "'weight_map' is missing", attribute(index="{}")),
        ("hf_pickle_only", "never opened", attribute(file="pytorch_model.bin")),
        ("hf_no_weights", "no .safetensors file here", attribute(file="weights.txt")),
    ]
