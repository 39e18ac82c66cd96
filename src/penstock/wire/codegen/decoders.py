"""Decoders: one flat function per struct and window of versions."""

from penstock.wire.codegen.layout import (
    Window,
    absent_fields,
    blocks_of,
    condition,
    nullable_test,
    run_format,
    struct_versions,
    tagged_fields,
    windows_of,
)
from penstock.wire.codegen.spec import FIXED_WIDTH, Field, MessageSpec, Versions
from penstock.wire.codegen.text import Lines, alias, default_literal, function_name, packer_suffix


def emit_decoders(lines: Lines, message: MessageSpec) -> None:
    _emit_entry(lines, message)
    for window in windows_of(message):
        lines.add("", "")
        _Decoder(lines, message, None, window).emit(message.fields)
        for struct, versions in struct_versions(message, window).items():
            lines.add("", "")
            inner = Window(versions, window.flexible)
            _Decoder(lines, message, struct, inner).emit(message.structs[struct].fields)


def _emit_entry(lines: Lines, message: MessageSpec) -> None:
    name, first, last = message.name, message.versions.first, message.versions.last
    with lines.indented(f"def decode_{message.snake}(buf: Buffer, pos: int, version: int) -> tuple[{name}, int]:"):
        with lines.indented(f"if not {first} <= version <= {last}:"):
            lines.add(f'raise unsupported_version("{name}", version, {first}, {last})')
        lines.add("view = buf if type(buf) is memoryview else memoryview(buf)")
        with lines.indented("try:"):
            windows = windows_of(message)
            calls = [f"msg, pos = {function_name('decode', message, None, w)}(view, pos, version)" for w in windows]
            if len(windows) == 1:
                lines.add(calls[0])
            else:
                with lines.indented(f"if version >= {windows[1].versions.first}:"):
                    lines.add(calls[1])
                with lines.indented("else:"):
                    lines.add(calls[0])
        with lines.indented("except DECODE_FAULTS as fault:"):
            lines.add(f'raise malformed("{name}", version, fault) from fault')
        with lines.indented("if pos > len(view):"):
            lines.add(f'raise truncated("{name}", version)')
        lines.add("return msg, pos")


class _Decoder:
    """Writes one function."""

    def __init__(self, lines: Lines, message: MessageSpec, struct: str | None, window: Window) -> None:
        self.lines = lines
        self.message = message
        self.struct = struct
        self.window = window

    def emit(self, fields: list[Field]) -> None:
        window = self.window.versions
        target = alias(self.message, self.struct)
        signature = "buf: memoryview, pos: int, version: int"
        name = function_name("decode", self.message, self.struct, self.window)
        with self.lines.indented(f"def {name}({signature}) -> tuple[{target}, int]:"):
            self.lines.add(f"msg = new({target})")
            for field in absent_fields(fields, window):
                self._set_default(field)
            for block in blocks_of(fields, window):
                self._emit_block(block.condition, block.versions, block.runs)
            if self.window.flexible:
                self._emit_tags(tagged_fields(fields, window))
            self.lines.add("return msg, pos")

    def _set_default(self, field: Field) -> None:
        self.lines.add(f"msg.{field.snake} = {default_literal(self.message, field)}")

    def _emit_block(self, test: str, versions: Versions, runs: list[list[Field]]) -> None:
        if not test:
            self._emit_runs(runs, versions)
            return
        with self.lines.indented(f"if {test}:"):
            self._emit_runs(runs, versions)
        with self.lines.indented("else:"):
            for run in runs:
                for field in run:
                    self._set_default(field)

    def _emit_runs(self, runs: list[list[Field]], versions: Versions) -> None:
        for run in runs:
            if run[0].is_fixed:
                self._read_run(run)
            else:
                self._read_field(run[0], versions)

    def _read_run(self, run: list[Field]) -> None:
        codes, width = run_format(run)
        if codes == "?":
            self.lines.add(f"msg.{run[0].snake} = buf[pos] != 0")
        else:
            targets = ", ".join(f"msg.{field.snake}" for field in run)
            targets = f"({targets},)" if len(run) == 1 else targets
            self.lines.add(f"{targets} = unpack_{packer_suffix(codes)}(buf, pos)")
        self.lines.add(f"pos += {width}")

    def _read_field(self, field: Field, versions: Versions) -> None:
        test = nullable_test(field, versions)
        if not test:
            self._read_value(field, nullable=test == "")
            return
        with self.lines.indented(f"if {test}:"):
            self._read_value(field, nullable=True)
        with self.lines.indented("else:"):
            self._read_value(field, nullable=False)

    def _read_value(self, field: Field, *, nullable: bool) -> None:
        if field.is_array:
            self._read_array(field, nullable=nullable)
        elif field.is_struct:
            self._read_struct(field, nullable=nullable)
        else:
            kind = self._prefix(field, nullable=nullable)
            self.lines.add(f"msg.{field.snake}, pos = read_{kind}{field.type}(buf, pos)")

    def _prefix(self, field: Field, *, nullable: bool) -> str:
        compact = "compact_" if self.window.flexible and field.flexible else ""
        return compact + ("nullable_" if nullable else "")

    def _read_struct(self, field: Field, *, nullable: bool) -> None:
        call = f"msg.{field.snake}, pos = {self._struct_function(field)}(buf, pos, version)"
        if not nullable:
            self.lines.add(call)
            return
        # A signed byte stands before a nullable struct, negative for null; inside a tag it is a varint, 0 for null.
        null = "buf[pos] > 0x7F" if field.tag is None else "buf[pos] == 0"
        with self.lines.indented(f"if {null}:"):
            self.lines.add(f"msg.{field.snake} = None", "pos += 1")
        with self.lines.indented("else:"):
            self.lines.add("pos += 1", call)

    def _struct_function(self, field: Field) -> str:
        return function_name("decode", self.message, field.element, self.window)

    def _read_array(self, field: Field, *, nullable: bool) -> None:
        self.lines.add(f"count, pos = read_{self._prefix(field, nullable=nullable)}count(buf, pos)")
        if not nullable:
            self._read_elements(field)
            return
        with self.lines.indented("if count < 0:"):
            self.lines.add(f"msg.{field.snake} = None")
        with self.lines.indented("else:"):
            self._read_elements(field)

    def _read_elements(self, field: Field) -> None:
        target = f"msg.{field.snake}"
        if field.element == "uuid":
            self.lines.add(f"{target}, pos = read_uuids(buf, pos, count)")
            return
        if field.element in FIXED_WIDTH:
            code, width = FIXED_WIDTH[field.element]
            self.lines.add(f'{target}, pos = read_numbers(buf, pos, count, "{code}", {width})')
            return
        self.lines.add(f"{target} = items_{field.snake} = []")
        with self.lines.indented("for _ in range(count):"):
            if field.is_struct:
                self.lines.add(f"item_{field.snake}, pos = {self._struct_function(field)}(buf, pos, version)")
            else:
                reader = f"read_{self._prefix(field, nullable=False)}{field.element}"
                self.lines.add(f"item_{field.snake}, pos = {reader}(buf, pos)")
            self.lines.add(f"items_{field.snake}.append(item_{field.snake})")

    def _emit_tags(self, fields: list[Field]) -> None:
        if not fields:
            with self.lines.indented("if buf[pos]:"):
                self.lines.add("pos = skip_tagged_fields(buf, pos)")
            with self.lines.indented("else:"):
                self.lines.add("pos += 1")
            return
        for field in fields:
            self._set_default(field)
        with self.lines.indented("if not buf[pos]:"):
            self.lines.add("return msg, pos + 1")
        self.lines.add("tags, pos = read_uvarint(buf, pos)")
        with self.lines.indented("for _ in range(tags):"):
            self.lines.add(
                "tag, pos = read_uvarint(buf, pos)", "size, pos = read_uvarint(buf, pos)", "end = pos + size"
            )
            word = "if"
            for field in fields:
                test = condition(field.versions, self.window.versions)
                with self.lines.indented(f"{word} tag == {field.tag}{f' and {test}' if test else ''}:"):
                    self._read_tagged(field)
                word = "elif"
            with self.lines.indented("else:"):
                self.lines.add("pos = end")
            with self.lines.indented("if pos != end:"):
                self.lines.add("raise wrong_tag_size(tag)")

    def _read_tagged(self, field: Field) -> None:
        if field.type in FIXED_WIDTH:
            self._read_run([field])
        else:
            self._read_field(field, field.versions & self.window.versions)
