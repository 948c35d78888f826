"""Rules of dtypes from calls and the oracle's answers: whose dtype decides, which are refused, and in which words.

A rule is kept only if it refuses no call that the oracle ran. simgpu/checks/dtypes.py says what a rule is.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator

import torch

from simgpu.checks.scalar_types import NAMES, legacy_name, name
from tools.oracle.dtypes.calls import DTYPES, all_tensors, overload, tensors

# Errors that no dtype decides, or in which a stub of a library speaks.
OTHER = re.compile(
    "cusolver|CUSOLVER|MAGMA|magma|cufft|CUFFT|cuFFT|nvrtc|NVRTC|Jiterator|cusparse|CUSPARSE|CUDA out of memory"
    "|std >= 0|Expected all rows of lengths|infs or NaNs|result type .* can't be cast|Could not run"
    "|different from other tensors"
    "|out of bounds for|can't be safely cast to passed dtype"
    "|argument alpha must|argument beta must|Integer division with addcdiv|Converting complex Scalar|value cannot be"
    "|repeats can not|shape of the mask|Length of all samples|Index to scalar"
)
# Operators whose rules in simgpu/ops look at dtypes themselves, and tell what is taken before they refuse.
BY_RULE = re.compile(
    r"aten::(_softmax|_log_softmax|_cdist_forward|nll_loss2?d?_(forward|backward)|mm|bmm|mv|addmm_?|baddbmm_?|addmv_?|"
    r"addbmm_?|silu_?|gelu|_trilinear|binary_cross_entropy|complex|polar|grid_sampler_[23]d|index_select|put_|"
    r"index_put_?|_index_put_impl_|convolution(_backward)?|randint(_like)?)(\.|$)"
)
# Where a weight or statistics of another dtype are allowed in some combinations: rules of their own, as above.
MIXING = re.compile(r"(batch|group|layer|rms)_norm|embedding_bag")
# Which c10 promotes with nothing else
WITHOUT_PROMOTION = ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2")
LEAST, AS_OFTEN = 3, 0.4  # calls that a rule explains; of those that it concerns, the share
_FORMS = {one: {"at": name(dtype), "cpp": NAMES[dtype][0], "legacy": legacy_name(dtype), "py": one}
          for one in DTYPES for dtype in [getattr(torch, one)]}  # fmt: skip
_NAMES = sorted({text for forms in _FORMS.values() for text in forms.values()}, key=len, reverse=True)
_ANY = re.compile(r"(?<![\w:<])(?:at::)?(?:" + "|".join(map(re.escape, _NAMES)) + r")(?![\w>])")
_GLUED = re.compile("(Scalar Type|has dtype)(" + "|".join(_NAMES) + r")(?!\w)")
_LITERAL = re.compile(r"(for '|found |Scalar Type|has dtype|got )(at::)?(" + "|".join(map(re.escape, _NAMES)) + r")\b")


def deciding(call: dict) -> dict[str, str]:
    """The dtypes of a call that may decide, by `Entry.of`'s name of each."""
    schema, found, read, numbers = overload(call["op"])._schema, {}, [], []
    for place, argument in enumerate(schema.arguments):
        positional = call["args"][place] if place < len(call["args"]) else argument.default_value
        value = call["kwargs"].get(argument.name, positional)
        held = list(tensors(value))
        if held and len({one[2] for one in held}) == 1:
            found[f"arg:{argument.name}"] = held[0][2]
        if held:
            read += [] if argument.is_out else held
        elif isinstance(value, (bool, int, float)) and str(argument.type) in ("number", "Scalar", "Tensor"):
            numbers.append(value)
        elif isinstance(value, dict) and "dtype" in value:
            found[f"kw:{argument.name}"] = value["dtype"]
    if read and all(one[2] == read[0][2] for one in read) and read[0][2] in WITHOUT_PROMOTION:
        own, real = read[0][2], [one for one in numbers if not isinstance(one, complex)]
        found |= {"common": own, "commonnum": _common(read, real), "commonfloat": _common(read, [1.0])}
        found["kwor"] = found.get("kw:dtype", own)
    elif read and not any(one[2] in WITHOUT_PROMOTION for one in read):
        common, floating = _common(read, []), _common(read, [1.0])
        found |= {"common": common, "commonnum": _common(read, numbers), "kwor": found.get("kw:dtype", read[0][2])}
        found["commonfloat"] = common if _is_float(common) else floating
    return found


def _is_float(dtype: str) -> bool:
    return getattr(torch, dtype).is_floating_point or getattr(torch, dtype).is_complex


def _common(read: list, numbers: list) -> str:
    """torch.result_type of tensors and numbers."""
    groups: list[torch.dtype | None] = [None, None, None]

    def order(dtype) -> int:
        return 3 if dtype.is_complex else 2 if dtype.is_floating_point else int(dtype != torch.bool)

    of_numbers = [(2, torch.tensor(one).dtype) for one in numbers]
    for place, dtype in [(int(not one[0]), getattr(torch, one[2])) for one in read] + of_numbers:
        groups[place] = dtype if groups[place] is None else torch.promote_types(groups[place], dtype)
    result = groups[0]
    for dtype in groups[1:]:
        if dtype is not None and (result is None or order(dtype) > order(result)):
            result = dtype if result is None else torch.promote_types(result, dtype)
    return str(result)[6:]


def _template(message: str, dtypes: list[str]) -> str:
    for place, dtype in enumerate(dtypes):
        forms = _FORMS.get(dtype, {"at": dtype})
        for glue in ("Scalar Type", "has dtype"):
            message = re.sub(glue + forms["at"] + r"(?!\w)", f"{glue}{{at{place}}}", message)
        for form, text in sorted(forms.items(), key=lambda one: -len(one[1])):
            message = re.sub(r"(?<![\w:<{])" + re.escape(text) + r"(?![\w>}])", f"{{{form}{place}}}", message)
    return message


def _filled(text: str, dtypes: list[str]) -> str:
    for place, dtype in enumerate(dtypes):
        for form, spelled in _FORMS.get(dtype, {}).items():
            text = text.replace(f"{{{form}{place}}}", spelled)
    return text


class Asked:
    """One call, its answer, and what a rule may look at."""

    def __init__(self, kind: str, call: dict, answer: str):
        self.kind, self.answer, self.dtypes = kind, answer, deciding(call)
        there = all_tensors(call)
        self.empty = any(0 in one[0] for one in there)
        self.scalar = bool(there) and not there[0][0]

    def refused_by(self, rule: dict, empty: bool | None = None) -> str | None:
        """The words of a rule that refuses this call."""
        if (self.empty and not (rule["empty"] if empty is None else empty)) or (self.scalar and not rule["scalar"]):
            return None
        decides, other = self.dtypes.get(rule["of"]), self.dtypes.get(rule["other"] or "")
        if decides is None or (rule["other"] and (other is None or other == decides)):
            return None
        if not rule["other"]:
            return _filled(rule["says"], [decides]) if decides in rule["refused"] else None
        return _filled(rule["says"], [decides, str(other)])


def _first_choice(operator: str, of: str) -> int:
    """The lower, the sooner a rule is to be of this dtype: TensorIterator's common one for pointwise operators."""
    schema, pointwise = overload(operator)._schema, torch.Tag.pointwise in overload(operator).tags
    names = [argument.name for argument in schema.arguments]
    commons = {"common": 0, "commonnum": 1, "commonfloat": 2}
    if of == "kwor":
        return -1 if "dtype" in names else 25
    if of in commons:
        return commons[of] + (0 if pointwise else 30)
    return 26 if of.startswith("kw:") else 5 + names.index(of[4:])


def _options(operator: str, left: list[Asked], ran: list[Asked]) -> Iterator[tuple]:
    """(calls explained, preference, rule) of every rule that explains some of `left` and refuses none that ran."""
    keys = sorted({key for one in left for key in one.dtypes})
    named = [key for key in keys if key.startswith(("arg:", "kw:"))]
    for scalar in (True, False):
        usable = [one for one in left if not one.empty and (scalar or not one.scalar)]
        fine = [one for one in ran if not one.empty and (scalar or not one.scalar)]
        for of in [(key,) for key in keys] + list(itertools.permutations(named, 2)):
            by_text = defaultdict(list)
            for one in usable:
                dtypes = [one.dtypes.get(key) for key in of]
                if None not in dtypes and (len(of) == 1 or dtypes[0] != dtypes[1]):
                    by_text[_template(one.answer, dtypes)].append(one)
            if not by_text:
                continue
            text, covered = max(by_text.items(), key=lambda item: len(item[1]))
            rule = {"says": text, "of": of[0], "other": of[1] if of[1:] else None, "refused": [], "empty": False,
                    "scalar": scalar}  # fmt: skip
            if not of[1:]:
                passed = {one.dtypes.get(of[0]) for one in fine}
                rule["refused"] = sorted({one.dtypes[of[0]] for one in covered} - passed)
                covered = [one for one in covered if one.dtypes[of[0]] in rule["refused"]]
            elif any(one.refused_by(rule) for one in fine):
                continue
            if covered and not _LITERAL.search(text):
                preference = -sum(_first_choice(operator, key) for key in of) - len(of)
                yield len(covered), scalar, preference, rule, covered


def _rules_of(operator: str, asked: list[Asked]) -> list[dict]:
    """The rules of one operator, in the order that agrees with most answers."""
    ran = [one for one in asked if one.answer == "ok"]
    groups = defaultdict(list)
    for one in asked:
        if one.answer not in ("ok", "make") and not OTHER.search(one.answer):
            groups[_ANY.sub("T", _GLUED.sub(r"\1T", one.answer))].append(one)
    live = [one for one in asked if one.answer != "make" and not one.empty]
    rules: list[dict] = []
    for group in groups.values():
        left = [one for one in group if one.kind != "empty"]
        enough = LEAST if len(left) > LEAST else 1
        while left:
            found = [one for one in _options(operator, left, ran) if one[0] >= enough]
            found = sorted(found, key=lambda one: one[:3], reverse=True)[:12]
            best = None
            for count, scalar, preference, rule, covered in sorted(
                (one for one in _options(operator, left, ran) if one[0] >= enough),
                key=lambda one: one[:3],
                reverse=True,
            )[:12]:
                concerned = [one for one in live if one.refused_by(rule)]
                share = sum(one in group for one in concerned) / max(len(concerned), 1)
                rank = (count * share, scalar, preference)
                if share >= AS_OFTEN and (best is None or rank > best[0]):
                    best = rank, rule, covered
            if best is None:
                break
            rules.append(best[1])
            left = [one for one in left if one not in best[2]]
    pointwise = torch.Tag.pointwise in overload(operator).tags
    for rule in rules:
        found = [(words, one.answer) for one in asked if one.empty and (words := one.refused_by(rule, True))]
        ran_empty = any(answer == "ok" for _, answer in found)
        rule["empty"] = (any(words == answer for words, answer in found) and not ran_empty) or (not found and pointwise)
    return _ordered(rules, [one for one in asked if one.answer != "make"])


def _ordered(rules: list[dict], asked: list[Asked]) -> list[dict]:
    words = [[one.refused_by(rule) for rule in rules] for one in asked]

    def right(order: list[int]) -> int:
        first = (next((said[place] for place in order if said[place]), None) for said in words)
        return sum(text == one.answer for text, one in zip(first, asked, strict=True) if text is not None)

    order, better = list(range(len(rules))), True
    while better:
        better = False
        for take, put in itertools.permutations(range(len(order)), 2):
            other = list(order)
            other.insert(put, other.pop(take))
            if right(other) > right(order):
                order, better = other, True
    return [rules[place] for place in order]


def table(asked: dict[str, list[Asked]]) -> dict[str, list[dict]]:
    """The rules of each operator, those left out that simgpu/ops has by hand."""
    found = {}
    for operator, calls in asked.items():
        rules = [] if BY_RULE.match(operator) else _rules_of(operator, calls)
        if MIXING.search(operator):
            firsts = ("arg:input", "arg:self", "arg:weight", "arg:grad")
            rules = [one for one in rules if one["of"] in firsts and "not implemented for" in one["says"]]
        if rules:
            found[operator] = rules
    return found
