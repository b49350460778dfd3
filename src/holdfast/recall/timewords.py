"""Words of time, and of talk, in further languages: tables that `expressions`, `times` and `questions` take in. Nothing but data.

Those of English, German, Spanish and French stand with the grammar. Here is the commonest of other languages: today, yesterday, the
week, month or year that runs and the one before, so many of them ago, days by name and by date. All of it is folded.
"""

# ruff: noqa: RUF001 (words of other scripts; lists of words)

from __future__ import annotations

from typing import Final

BACK: Final[dict[tuple[str, int], str]] = {
    ("day", 0): "hoje|oggi|vandaag|сегодня",
    ("day", 1): "ontem|ieri|gisteren|вчера",
    ("day", 2): "anteontem|l'altro ieri|avantieri|eergisteren|позавчера",
    ("week", 0): "(?:n?esta) semana|questa settimana|deze week|(?:на )?этой неделе",
    (
        "week",
        1,
    ): "(?:n?a )?semana passada|(?:la )?settimana scorsa|(?:la )?scorsa settimana|(?:vorige|afgelopen) week|(?:на )?прошлой неделе",
    ("month", 0): "(?:n?este) mês|questo mese|deze maand|(?:в )?этом месяце",
    (
        "month",
        1,
    ): "(?:n?o )?mês passado|(?:il )?mese scorso|(?:lo )?scorso mese|(?:vorige|afgelopen) maand|(?:в )?прошлом месяце",
    ("year", 0): "(?:n?este) ano|quest'anno|dit jaar|(?:в )?этом году",
    (
        "year",
        1,
    ): "(?:n?o )?ano passado|(?:l')?anno scorso|(?:lo )?scorso anno|(?:vorig|afgelopen) jaar|(?:в )?прошлом году",
}
"""Phrases for a day, week, month or year, by how many of them it lies back."""
AGO: Final = ("{n} {unit} fa", "há {n} {unit}(?: atrás)?", "{n} {unit} (?:atrás|geleden|назад)")
PAST: Final = (
    "(?:n?[oa]s )?últim[oa]s {n} {unit}",
    "(?:negli |nelle |gli |le )?ultim[ie] {n} {unit}",
    "(?:in )?(?:de )?(?:afgelopen|laatste) {n} {unit}",
    "(?:за )?последние {n} {unit}",
)
ON: Final = (
    "(?:na |no )?(?P<weekday>{weekday})(?:-feira)? passad[ao]",
    "(?:na|no) (?P<weekday>{weekday})(?:-feira)?",
    "(?:il |la )?(?P<weekday>{weekday}) scors[oa]",
    "(?:op|afgelopen|vorige) (?P<weekday>{weekday})",
    "(?:в|во) (?:прошл(?:ый|ую|ое) )?(?P<weekday>{weekday})",
)
IN: Final = "em|nel|no mês de|в"
"""Words before a month."""
AT: Final = "(?:em|no dia|il|op)"
"""Words before a day of a month."""
MONTHS: Final = (
    *("janeiro gennaio januari январь январе января", "fevereiro febbraio februari февраль феврале февраля"),
    *("março marzo maart март марте марта", "aprile апрель апреле апреля", "maio maggio mei май мае мая"),
    *("junho giugno июнь июне июня", "julho luglio июль июле июля", "augustus август августе августа"),
    *("setembro settembre сентябрь сентябре сентября", "outubro ottobre октябрь октябре октября"),
    *("novembro ноябрь ноябре ноября", "dezembro dicembre декабрь декабре декабря"),
)
WEEKDAYS: Final = (
    *("segunda lunedì maandag понедельник", "terça martedì dinsdag вторник", "quarta mercoledì woensdag среду среда"),
    *("quinta giovedì donderdag четверг", "sexta venerdì vrijdag пятницу пятница", "sabato zaterdag субботу суббота"),
    "domenica zondag воскресенье",
)
NUMBERS: Final = (
    *("um uma één один одну", "dois duas due twee два две", "três tre drie три", "quatro quattro vier четыре"),
    *("cinque vijf пять", "sei zes шесть", "sete sette zeven семь", "oito otto acht восемь", "nove negen девять"),
    *("dez dieci tien десять", "onze undici elf", "doze dodici twaalf"),
)
"""From one on."""
UNITS: Final = {
    "minute": "minuti minuut minuten минуту минуты минут",
    "hour": "ora ore uur uren час часа часов",
    "day": "giorno giorni dag dagen день дня дней",
    "week": "settimana settimane weken неделю недели недель",
    "month": "mês mese mesi maand maanden месяц месяца месяцев",
    "year": "ano anos anno anni jaar jaren год года лет",
}

HINTS: Final = """
    hoje ontem anteontem semana mês ano passado passada oggi ieri altro avantieri questa questo settimana scorsa scorso mese anno vandaag
    gisteren eergisteren deze vorige vorig afgelopen laatste maand jaar сегодня вчера позавчера неделе месяце году прошлой прошлом
    há fa atrás geleden назад últimos últimas ultimi ultime последние sábado domingo abril agosto
"""
"""One of these, or of the names above, stands in every such expression."""

# -- scripts without spaces, and those that hang particles on words -----------

DENSE_BACK: Final[dict[tuple[str, int], str]] = {
    ("day", 0): "今天|今日|本日|きょう|오늘",
    ("day", 1): "昨天|昨日|きのう|어제",
    ("day", 2): "前天|一昨日|おととい|그저께|그제|엊그제",
    ("week", 0): "这周|這週|本周|本週|这个?星期|這個?星期|今週|이번 ?주",
    ("week", 1): "上周|上週|上个?星期|上個?星期|先週|지난 ?주",
    ("month", 0): "这个?月|這個?月|本月|今月|이번 ?달",
    ("month", 1): "上个?月|上個?月|先月|지난 ?달",
    ("year", 0): "今年|올해",
    ("year", 1): "去年|昨年|작년|지난 ?해",
}
DENSE_NUMBERS: Final = ("一 한", "二 两 兩 두", "三 세", "四 네", "五", "六", "七", "八", "九", "十")
DENSE_UNITS: Final = {
    "minute": "分 分钟 分鐘 分間 분",
    "hour": "小时 小時 個小時 个小时 時間 시간",
    "day": "天 日 日間 일",
    "week": "周 週 週間 星期 个星期 個星期 주 주일",
    "month": "个月 個月 か月 ヶ月 カ月 ケ月 ヵ月 달 개월",
    "year": "年 年間 년",
}
DENSE_WEEKDAYS: Final = tuple(
    f"星期{han} 周{han} 週{han} 礼拜{han} 禮拜{han} {kanji}曜日 {kanji}曜 {hangul}요일"
    for han, kanji, hangul in zip("一二三四五六日", "月火水木金土日", "월화수목금토일", strict=True)
)
DENSE_HINT: Final = "[天日周週月年前期拜전제늘달해작요주월]|きょう|きのう|おととい"
"""In every such expression stands one of these."""
DENSE_LAST_WEEK: Final = "上(?:个|個)?(?=星期|周|週|礼拜|禮拜)|先週の?|지난 ?주 ?"

# -- talk ----------------------------------------------------------------------

CONVERSATION: Final = (
    r"\b(?:perguntei|perguntou|perguntaste|perguntamos|falei|falou|falamos|disse|dissemos|disseste|contei|contou|mencionei|mencionou"
    r"|discutimos|escrevi|recomendou|recomendaste|sugeriu|explicou|respondeu|conversamos|conversas?|perguntas|mensagens)\b"
    r"|\b(?:chiesto|detto|parlato|raccontato|menzionato|discusso|scritto|consigliato|suggerito|proposto|spiegato|risposto|domande"
    r"|messaggi|conversazion[ei])\b"
    r"|\b(?:ik|jij|je|wij|we)\b[^.?!]{0,60}\b(?:gevraagd|gezegd|verteld|besproken|gepraat|gesproken|genoemd|geschreven|laten zien|aangeraden"
    r"|aanbevolen|voorgesteld|uitgelegd|geantwoord|vroeg|vroegen|zei|zeiden)\b|\bgesprek(?:ken)?\b"
    r"|\b(?:mijn|jouw|onze) (?:vragen|vraag|berichten|antwoorden)\b"
    r"|\b(?:(?:с|по)?говорил|(?:с|рас)прашивал|спросил|(?:рас)?сказал|рассказывал|обсуждал|обсудил|упоминал|упомянул|(?:на)?писал"
    r"|(?:по)?советовал|предлагал|предложил|объяснял|объяснил|отвечал|ответил)(?:а|и)?\b"
    r"|\b(?:мои|твои|наши) (?:вопросы|сообщения|ответы|разговоры)\b|\bразговор[еы]?\b|\bбеседы?\b"
)
BY_USER: Final = (
    r"\bperguntei\b|\b(?:eu )(?:disse|falei)\b|\bho (?:chiesto|detto|scritto|raccontato)\b|\b(?:heb ik|ik heb)\b[^.?!]{0,40}\b(?:gevraagd|gezegd)\b"
    r"|\bя\b[^.?!]{0,24}\b(?:спрашивал|спросил|говорил|сказал|писал)а?\b|我[^。?!]{0,8}[问問]|(?:내가|제가)[^.?!]{0,16}(?:물|질문)|私の質問"
)
BY_ASSISTANT: Final = (
    r"\b(?:você|tu) (?:disse|recomendou|sugeriu|explicou|respondeu)\b|\b(?:mi )?hai (?:detto|consigliato|suggerito|spiegato|risposto)\b"
    r"|\b(?:heb je|je hebt)\b[^.?!]{0,40}\b(?:gezegd|aangeraden|voorgesteld|uitgelegd)\b"
    r"|\bты\b[^.?!]{0,24}\b(?:советовал|посоветовал|предлагал|предложил|говорил|сказал|объяснил|ответил)а?\b"
    r"|你[^。?!]{0,8}(?:推荐|推薦|建议|建議|回答|解释|解釋)"
)
DENSE_CONVERSATION: Final = (
    "[我你您咱][^。?!]{0,16}(?:问|問|说|說|讲|講|聊|谈|談|讨论|討論|提到|提过|告诉|告訴|推荐|推薦|建议|建議|回答|决定|決定)|对话|對話|聊天|会话|會話"
    "|(?:聞|訊|き)いた|聞きました|(?:話|言|伝え)(?:した|しました|った|いました)|話し(?:た|ました|合)|伝えた|質問|相談|会話|チャット|尋ね|(?:勧|薦)め(?:た|て|まし)|提案し"
    "|물었|물어|여쭤|말했|말씀|얘기|이야기|대화|질문|추천|제안|논의|상의"
)
"""That somebody asks for what was said. Without bounds of words, which these scripts do not show."""
DENSE_TALK: Final = (
    "什么|什麼|哪些|哪个|哪個|关于|關於|问题|問題|内容|內容|消息|话题|話題|我们|我們|咱们|你们|问过|問過|问|問|说过|說過|说|說|讲|講|聊天|聊|谈|談|讨论|討論|提到|告诉|告訴"
    "|对话|對話|给我|给|過|过|推荐|推薦|建议|建議|回答"
    "|何(?:を|について|の|が|か)?|なに(?:を)?|どんな(?:こと|話)?|について|(?:聞|訊)(?:いた|きました|いて)|話(?:した|しました|していた)?|言(?:った|いました)|質問(?:した|しました)?|相談(?:した|しました)?"
    "|会話|尋ね(?:た|ました)|教えて(?:くれた|くれました|もらった)?|(?:でし|ですっ)?たっけ|でしたか|ですか|ました(?:か)?|でした|です|こと|もの|私|僕|俺|(?<=[日週月年])(?:は|に|の)"
    "|내가|제가|우리(?:가|는)?|너(?:는|가)?|네가|뭐(?:라고|를|가|에)?|뭘|무엇(?:을|에|이)?|무슨|어떤|대해서?|관해서?|것(?:을|은)?|(?:물어|얘기|이야기|질문|말|대화|논의|추천|제안)(?:을|를)?"
    "|(?:물|했|말했|봤|물었|었|나눴)(?:었)?(?:지|나|나요|어요|습니까|죠|어|더라)?|했(?:지|나|나요|어|어요|습니까)|알려 ?줘|보여 ?줘"
)
"""Words that are about the conversation where a question in these scripts asks for a time of it, and for nothing else."""
ASKING: Final = """
    perguntei perguntou perguntamos falei falou falamos disse dissemos contei mencionei discutimos conversamos conversa conversas
    chiesto detto parlato raccontato menzionato discusso conversazione conversazioni
    gevraagd gezegd verteld besproken gepraat gesproken genoemd gesprek gesprekken
    спрашивал спрашивала спросил спросила говорил говорила говорили сказал сказала обсуждали обсуждал обсуждала разговор разговоры
    рассказывал рассказывала
"""
TALKING: Final = """
    recomendou sugeriu explicou respondeu escrevi perguntas mensagens temas assuntos lista resumo
    consigliato suggerito proposto spiegato risposto scritto domande messaggi argomenti elenco riassunto
    aangeraden aanbevolen voorgesteld uitgelegd geantwoord geschreven vragen berichten onderwerpen lijst samenvatting
    советовал посоветовал предлагал предложил объяснил ответил писал вопросы сообщения темы список
"""
