"""Encoders: one flat function per struct and window of versions, appending to a bytearray."""

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


def emit_encoders(lines: Lines, message: MessageSpec) -> None:
    _emit_entry(lines, message)
    for window in windows_of(message):
        lines.add("", "")
        _Encoder(lines, message, None, window).emit(message.fields)
        for struct, versions in struct_versions(message, window).items():
            lines.add("", "")
            inner = Window(versions, window.flexible)
            _Encoder(lines, message, struct, inner).emit(message.structs[struct].fields)


def _emit_entry(lines: Lines, message: MessageSpec) -> None:
    name, first, last = message.name, message.versions.first, message.versions.last
    with lines.indented(f"def encode_{message.snake}(msg: {name}, version: int, out: bytearray) -> None:"):
        with lines.indented(f"if not {first} <= version <= {last}:"):
            lines.add(f'raise unsupported_version("{name}", version, {first}, {last})')
        with lines.indented("try:"):
            windows = windows_of(message)
            calls = [f"{function_name('encode', message, None, w)}(msg, version, out)" for w in windows]
            if len(windows) == 1:
                lines.add(calls[0])
            else:
                with lines.indented(f"if version >= {windows[1].versions.first}:"):
                    lines.add(calls[1])
                with lines.indented("else:"):
                    lines.add(calls[0])
        with lines.indented("except ENCODE_FAULTS as fault:"):
            lines.add(f'raise unencodable("{name}", version, fault) from fault')


class _Encoder:
    """Writes one function."""

    def __init__(self, lines: Lines, message: MessageSpec, struct: str | None, window: Window) -> None:
        self.lines = lines
        self.message = message
        self.struct = struct
        self.window = window
        self.out = "out"

    def emit(self, fields: list[Field]) -> None:
        window = self.window.versions
        name = function_name("encode", self.message, self.struct, self.window)
        target = alias(self.message, self.struct)
        with self.lines.indented(f"def {name}(msg: {target}, version: int, out: bytearray) -> None:"):
            for field in absent_fields(fields, window):
                self._refuse_value(field, "if")
            for block in blocks_of(fields, window):
                self._emit_block(block.condition, block.versions, block.runs)
            if self.window.flexible:
                self._emit_tags(tagged_fields(fields, window))
            elif not blocks_of(fields, window):
                self.lines.add("return")

    def _refuse_value(self, field: Field, word: str) -> None:
        """A value that this version cannot carry is an error unless the spec says it may be lost."""
        if field.ignorable:
            return
        owner = self.struct or self.message.name
        with self.lines.indented(f"{word} {self._differs(field)}:"):
            self.lines.add(f'raise unsupported_field("{owner}", "{field.snake}", version)')

    def _differs(self, field: Field) -> str:
        """The test for a value that is not the default."""
        value = f"msg.{field.snake}"
        if field.defaults_to_null:
            return f"{value} is not None"
        default = default_literal(self.message, field)
        if default in {"[]", 'b""', '""', "False", "0"} and field.element not in {"float64"}:
            return value
        if default == "True":
            return f"not {value}"
        return f"{value} != {default}"

    def _emit_block(self, test: str, versions: Versions, runs: list[list[Field]]) -> None:
        if not test:
            self._emit_runs(runs, versions)
            return
        with self.lines.indented(f"if {test}:"):
            self._emit_runs(runs, versions)
        refused = [field for run in runs for field in run if not field.ignorable]
        if refused:
            with self.lines.indented("else:"):
                for field in refused:
                    self._refuse_value(field, "if")

    def _emit_runs(self, runs: list[list[Field]], versions: Versions) -> None:
        for run in runs:
            if run[0].is_fixed:
                self._write_run(run)
            else:
                self._write_field(run[0], versions)

    def _write_run(self, run: list[Field]) -> None:
        codes, _ = run_format(run)
        values = ", ".join(f"msg.{field.snake}" for field in run)
        self.lines.add(f"{self.out} += pack_{packer_suffix(codes)}({values})")

    def _write_field(self, field: Field, versions: Versions) -> None:
        test = nullable_test(field, versions)
        if not test:
            self._write_value(field, nullable=test == "")
            return
        with self.lines.indented(f"if {test}:"):
            self._write_value(field, nullable=True)
        with self.lines.indented("else:"):
            self._write_value(field, nullable=False)

    def _write_value(self, field: Field, *, nullable: bool) -> None:
        value = f"msg.{field.snake}"
        # mypy: the class allows null in some versions; null in another one raises inside and is reported.
        ignore = "  # type: ignore[arg-type]" if self._optional(field) and not nullable else ""
        if field.is_array:
            self._write_array(field, nullable=nullable)
        elif field.is_struct:
            call = f"{self._struct_function(field)}({value}, version, {self.out})"
            if not nullable:
                self.lines.add(call + ignore)
                return
            with self.lines.indented(f"if {value} is None:"):
                self.lines.add(f"{self.out}.append({'0xFF' if field.tag is None else '0'})")
            with self.lines.indented("else:"):
                self.lines.add(f"{self.out}.append(1)", call)
        else:
            kind = "bytes" if field.type == "records" else field.type
            prefix = self._prefix(field, nullable=nullable)
            self.lines.add(f"write_{prefix}{kind}({self.out}, {value}){ignore}")

    def _optional(self, field: Field) -> bool:
        return bool(field.nullable) or field.defaults_to_null

    def _prefix(self, field: Field, *, nullable: bool) -> str:
        compact = "compact_" if self.window.flexible and field.flexible else ""
        return compact + ("nullable_" if nullable else "")

    def _struct_function(self, field: Field) -> str:
        return function_name("encode", self.message, field.element, self.window)

    def _write_array(self, field: Field, *, nullable: bool) -> None:
        value = f"msg.{field.snake}"
        if not nullable:
            if self._optional(field):
                with self.lines.indented(f"if {value} is None:"):
                    self.lines.add(
                        f'raise unsupported_field("{self.struct or self.message.name}", "{field.snake}", version)'
                    )
            self._write_elements(field)
            return
        with self.lines.indented(f"if {value} is None:"):
            if self.window.flexible:
                self.lines.add(f"{self.out}.append(0)")
            else:
                self.lines.add(f"write_null_count({self.out})")
        with self.lines.indented("else:"):
            self._write_elements(field)

    def _write_elements(self, field: Field) -> None:
        value = f"msg.{field.snake}"
        self.lines.add(f"write_{self._prefix(field, nullable=False)}count({self.out}, {value})")
        if field.element in FIXED_WIDTH and field.element != "uuid":
            self.lines.add(f'write_numbers({self.out}, {value}, "{FIXED_WIDTH[field.element][0]}")')
            return
        item = f"item_{field.snake}"
        with self.lines.indented(f"for {item} in {value}:"):
            if field.is_struct:
                self.lines.add(f"{self._struct_function(field)}({item}, version, {self.out})")
            elif field.element == "uuid":
                self.lines.add(f"{self.out} += {item}")
            else:
                self.lines.add(f"write_{self._prefix(field, nullable=False)}{field.element}({self.out}, {item})")

    def _emit_tags(self, fields: list[Field]) -> None:
        if not fields:
            self.lines.add("out.append(0)")
            return
        self.lines.add("tags = 0", "tagged = bytearray()")
        for field in fields:
            test = condition(field.versions, self.window.versions)
            if test:
                with self.lines.indented(f"if {test}:"):
                    self._write_tagged(field)
                if not field.ignorable:
                    self._refuse_value(field, "elif")
            else:
                self._write_tagged(field)
        self.lines.add("write_uvarint(out, tags)", "out += tagged")

    def _write_tagged(self, field: Field) -> None:
        with self.lines.indented(f"if {self._differs(field)}:"):
            self.lines.add("value = bytearray()")
            self.out = "value"
            if field.type in FIXED_WIDTH:
                self._write_run([field])
            else:
                self._write_field(field, field.versions & self.window.versions)
            self.out = "out"
            self.lines.add(f"write_tagged_field(tagged, {field.tag}, value)", "tags += 1")
