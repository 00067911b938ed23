"""Words that state an answer in a response, or deny it, bound it or leave it open.

In Arabic, Chinese, English, French, German, Hindi, Italian, Japanese, Korean, Portuguese, Russian, Spanish, Turkish and
Vietnamese; a few are Dutch, Indonesian or Thai. Each text between commas is a phrase, which may hold a pattern.
"""

from __future__ import annotations

import re

MARK = r"[*_\"'`]{0,3}"
_UNSPACED = "\u0900"  # scripts from here on write words without a space between them, or with endings


def any_of(phrases: str) -> str:
    """A pattern for any of the phrases: whole words where the script sets them apart."""
    found = [r"\s".join(phrase.split()) for phrase in phrases.split(",")]
    words = "|".join(phrase for phrase in found if phrase[0] < _UNSPACED)
    return "|".join([*(phrase for phrase in found if phrase[0] >= _UNSPACED), rf"(?<!\w)(?:{words})(?!\w)"])


def pattern(phrases: str, behind: str = "") -> re.Pattern[str]:
    """Compile a pattern for any of the phrases, followed by the pattern `behind`."""
    return re.compile(f"(?:{any_of(phrases)}){behind}", re.IGNORECASE)


_SET_BY = {  # nouns, and what may follow them: verbs and signs
    "en": (
        r"\b(?:answers?|solution\ssets?|final\ssolution|(?:correct|right)\s(?:option|choice)|(?:solutions|roots)(?=\s[^.\n]{0,60}\bare\b))",
        r"is|are|equals|was|were|[-=]{1,2}>|(?:would|must|should)\sbe|(?:comes|comes\sout|turns\sout)\sto(?:\sbe)?|[—–-](?=\s)",
    ),
    "zh": ("答案|解答|结果|結果|答", r"应该是|應該是|应为|應為|等于|等於|[是为為]|(?=[\s\d$\\-]|[不并至大小介在])"),
    "zh_choice": (r"(?:故|应该?|所以|因此|答案|(?<!\w))选择?|正确的?选项[是为]", r"(?=[\s$A-J])"),
    "ja": ("答え|正解|解答", "は|が"),
    "ko": ("정답|답|결과", "은|는|이"),
    "ar": ("الإجابة|الجواب|الاجابة", "هي|هو|تساوي|(?=ليس)"),
    "hi": ("उत्तर", "है|(?=\\s)"),
    "ru": (r"\bответ(?:ом)?\b", r"[—–-](?=\s)|равен|это|будет|является|(?=не\s)"),
    "es": (r"\b(?:respuestas?|soluci[oó]n(?:es)?|resultados?)\b", "es|son|ser[ií]a"),
    "fr": (r"\b(?:r[ée]ponses?|r[ée]sultats?|solutions?(?=\s(?:est|sont)))\b", "est|sont"),
    "de": (r"\b(?:Antwort|Lösung|Ergebnis)(?:en)?", "lautet|ist|beträgt|sind|lauten"),
    "pt": (
        r"\b(?:respostas?|resultados?|rispost[ae]|risultat[oi]|soluzion[ei]|solu[çc](?:ão|ões))\b",
        "[ée]|è|s[ãa]o|sono|ser[ií]a",
    ),
    "vi": (r"\b(?:đáp\sán|câu\strả\slời)", "là"),
    "tr": (r"\bcevap", r"(?=\s)"),
    "choice": (
        r"\b(?:opci[oó]n\scorrecta|option\scorrecte|richtige\sOption|(?:alternativa|op[cç][aã]o)\scorreta"
        r"|(?:верный|правильный)\sвариант)\b",
        r"es|est|ist|[ée]|это|[—–-](?=\s)",
    ),
}
WITH_DECIMAL_COMMA = frozenset(("ru", "es", "fr", "de", "pt", "vi", "tr"))
# Repeats are bounded: otherwise some responses would make these expressions take quadratic time or worse.
_ASIDE = (
    r"(?:\s(?:to|for|of|auf|zu)\s(?:[\"“][^\"”\n]{1,120}[\"”]|[^.\n:=]{1,60}?)|\s(?:final|finale|correct[ae]?|corret[ao]|corrett[ao])"
    r"|\s(?:النهائية|النهائي|الصحيحة))?(?:\sn['’]|\s(?:no|não|non|не)(?=\s))?"
)
_SETTING = "|".join(
    rf"(?P<{language}>{nouns}){_ASIDE}{MARK}\s{{0,3}}(?:{verbs}|[:：=])" for language, (nouns, verbs) in _SET_BY.items()
)
ANSWER_IS = re.compile(
    rf"(?:{_SETTING})(?!(?<=[A-Za-z])[A-Za-z](?!['’]t\b)){MARK}\s{{0,3}}:?{MARK}\s{{0,3}}", re.IGNORECASE
)
DENIED = pattern(
    r"""not, never, neither, cannot, no longer, \w*n['’]t, doubt, (?:wrong|incorrect|false)\s(?:to|that),
    (?:wrong|incorrect|false|na[iï]ve|tempting)\s(?:answers?|results?|solutions?), incorrectly, no es,
    n['’]est, pas, nicht, keine?, não, non, không, niet, nie, bukan, не, ليست?, 不是, 并非, 不等于, ではな, ではあり,
    じゃな, 아니, 아닙, ไม่(?:ใช่)?, nobody, no one, hardly, far from, by no means, unlikely, differs? from, rules? out,
    no way(?: (?:that|it|this))*(?: is)?, anything but, impossible for(?:\s\w+)+?\sto\sbe,
    (?:thought|believed|claimed) to be"""
)
DENIED_BEHIND = re.compile(
    r"\s*(?:[이가]?\s?(?:ではな|ではあり|じゃな|아니|아닙|değil|नहीं)|,?\s?(?:which\s)?(?:is|was)"
    r"(?:(?:n['’]t|\snot)\s(?:right|correct|possible|valid)|\s(?:wrong|incorrect|false|impossible|extraneous|rejected|ruled\sout|too))\b"
    r"|\s(?:is|was)\snot\b|fails\b|(?:does|do|did)(?:n['’]t|\snot)\swork\b)"
)
JUDGED = pattern("(?:indeed )?(?:correct|right|reasonable|verified|confirmed)", behind=r"\W*(?:$|[.!,\n])")
SUPPOSED = pattern(
    r"""if, suppose, supposing, assume, assuming, whether, imagine, (?:might|may|would|could) think, thought,
    (?:some|many|most|people|others|students)(?:\s\w+)? (?:say|claim|believe|think|guess|get)(?: that)?,
    (?:mistake|error|trap|misconception|temptation)(?: (?:is|was))?(?: to \w+)?(?: that)?, si, wenn,
    (?:initially|first|originally) (?:said|got), (?:you|they|books?) (?:say|claim)s?(?: that)?, claimed,
    falls, my \w+(?: \w+)?['’]s, angenommen, se, если, إذا, 如果, 假设, 若, もし, 만약""",
    behind=r"(?:\sthat)?(?:\s(?:the|my|our|this|final|correct|die|la|a))*[\s,]*$",
)
CORRECTED = pattern(
    "(?<!anything )(?<!all )but, rather, instead, sondern, sino, mais, mas(?: sim)?, ma, а, بل, 而是, なく, 아니라",
    behind=r"[\s,:、]*|[,;:.—–]\s*it(?:['’]s|\sis)\s+",
)
OPEN = pattern(
    r"""between, at least, at most, (?:more|less|fewer|greater|smaller|larger|higher|lower) than, up to, under, over,
    above, below, maybe, perhaps, possibly, either, somewhere, (?:could|might|may)(?: \w+)? be, unknown, unclear,
    anything, everything, would have had to be, any of, one of, almost, nearly, different, unequal, exceed(?:s|ing)?,
    bounded, except, (?<!none )(?<!no )other than, all but, exclude, reject,
    close to, any number, entre, al menos, como máximo, tal vez, quizás?, (?:mayor|menor) que, más de,
    menos de, au moins, au plus, peut-être, (?:supérieure?|inférieure?) à, plus de, moins de,
    mindestens, höchstens, zwischen, vielleicht, (?:größer|kleiner|mehr|weniger) als,
    pelo menos, no máximo, talvez, (?:maior|menor) (?:do )?que, mais de,
    tra, almeno, al massimo, forse, (?:maggiore|minore|più|meno) di,
    (?:не )?(?:менее|более|меньше|больше), между, возможно, بين, ربما, على الأ(?:قل|كثر), (?:أكبر|أصغر|أكثر|أقل) من,
    介于, 不超过, 不大于, 不小于,
    至少, 至多, 大于, 小于, 或许, 可能, 在(?=\S*之间), 少なくとも, 多分, 최소, 적어도, 아마,
    lớn hơn, nhỏ hơn, ít nhất, nhiều nhất, en az, en fazla, कम से कम"""
)
OPERATED = pattern(
    "divisible by, (?:(?:multiple|factor|power|divisor|square|cube|root|half|third)s?|reciprocal) of, twice"
)
OPEN_BEHIND = re.compile(
    r"(?:st|nd|rd|th)\s(?:prime|term|power|root|row|digit|multiple|triangular|(?:\w+\s)?number)\b"
    r"|(?:\s+[^\W\d_]+){0,3}?[\s,;(]*(?:\b(?:alternatively|sorry|remainder|factorial|to\sthe\spower|(?:more|less|fewer)\sthan\s\W?(?:\d+|[b-z])|(?:at\s(?:most|least)|max(?:imum)?|minimum|tops)(?!\s\w)"
    r"|(?:or|and)\s(?:maybe|perhaps|possibly|more|less|fewer|higher|lower|greater|smaller|larger|above|below|over|under|up)"
    r"|unless|except|otherwise)\b|\+(?!\d)|\?|\.\s+Or\s|['’]?[dt][ae]n\s(?:büyük|küçük|fazla|az)|से\s(?:अधिक|कम)|[^\W\d_]{0,2}(?:以上|以下|より|보다|之间|未満|이상|이하|미만|초과))"
    r"|\s(?:is|are)\salso\s(?:possible|plausible)|[\s(,;.]*(?:\b(?:but|though|although|still)\s)?(?:it|that|the\sanswer)?\s*\b(?:could|might|may)\s(?:\w+\s)?be\s\W?\d"
    r"|[\s(,]*\b(?:if|when)\b[^.\n]{0,80}?\b(?:if|when|else|otherwise|were)\b",
    re.IGNORECASE,
)
_WHICH = r"\s(?:(?:of|about)\s)?which(?=\s*(?:$|[.,;!)])|\s(?:of|one|it|is|to)\b)"
UNDECIDED = re.compile(
    r"[,;:.]?\s*[-–—(]?\s*(?:(?:but|and|though|although)\s)?(?:(?:I|we)(?:\sam|\sare|['’]m|['’]re)?\s)?"
    r"(?:(?:(?:can|could|do)(?:n['’]?t|['’]t|\s?not)|unable\sto)\s(?:tell|say|decide|know|determine)"
    rf"(?:\s*[.!)]*\s*$|{_WHICH})"
    r"|(?:not|un)\s?(?:(?:entirely|completely|fully|quite|really|totally|so|100\s?%)\s)?(?:sure|certain|clear|decided)"
    rf"(?:\s*(?:$|[.!)\n])|{_WHICH})"
    r"|whichever\b|(?:one|either)\sof\s(?:the\stwo|them|these|those)\b)",
    re.IGNORECASE,
)
AND_WORDS = any_of(
    r"and, or, hoặc, veya, या, и, или, "
    r"y, o, e(?= (?:não|non)), et, und, oder, ou, أو, 和, 或者?, または, もしくは, 또는, 혹은"
)
CONTRAST = r",?\s{0,9}\b(?:rather\sthan|instead\sof)"
MINUS = any_of("minus, negative, минус, (?<!al )menos, (?<!au )moins, 负, 負, マイナス, 마이너스")
CORRECTION = (  # what another value follows
    r"[.,;!…—–]\s{0,9}(?:(?:(?:oh|wait|no|sorry|oops|correction|nein|non|perdón|нет)[,.:…—]{1,3}|actually,?|rather,?|I\smean,?)\s{1,3}){1,3}"
    r"(?:(?:es|est|ist|c['’]est)\s|(?:it|that)(?:['’]s|\sis)\s|I\smeant\s|make\s(?:it|that)\s)?(?:actually\s)?"
)
TAKEN_BACK = re.compile(
    r"(?:^|(?<=[.!?}$*\n]))\s{0,9}(?:(?:actually|hmm|wait|no|oh|sorry|but|however|(?:up)?on\s\w+(?:\s\w+)?)[,.!…\s]{1,9}){0,3}(?:that|this|it)"
    r"(?:(?:['’]s|\sis|\swas)\s(?:wrong|incorrect|false|not\s(?:right|correct)|a\smistake)\b(?!\s(?:that|to))"
    r"|\scan(?:['’]t|not)\sbe\s(?:right|correct)\b|\scontradicts\s(?:the|our|a|what)\s(?:conditions?|given|facts?|constraints?|requirements?|problem)\b)|(?<=[.!?}$*\n])\s{0,9}no,?\swait\b"
    r"|(?<=[.!?。])\s{0,9}(?:das\sist\sfalsch|eso\ses\sincorrecto|c['’]est\sfaux|это\sневерно|这是错的|これは間違い)"
    r"|[，,。、]\s?(?:不对|不，|いや)，?是?(?=\d)"
    rf"|{CORRECTION}(?=[-−$\\]?\d)",
    re.IGNORECASE,
)
NEARLY = r"\s*(?:≈|,?\s*\(?or\s(?:about|approximately|roughly|around)\b)\s*"
_AND = (
    r"\(\s*or|,?\s*or\sequiv\w*|(?:,\s(?:I|we)\s\w{3,9},?|\s[—–])\s(?:and|or)\b|"
    r"\((?=[*+.-9×-]+%?\))|\\text\s*\{\s*(?:and|or)\s*\}|,\s*(?:and|or)\b|[,;、]|，(?=[a-z]=)|か(?=\d)"
)
AND = f"{NEARLY}|{_AND}|{AND_WORDS}"
TO = rf"{any_of('and, or, to, through, and/or, 和, bis, до, 到, 至, から')}|-|~|\.{{2,3}}|…"
