"""Tables of words about time and conversation, stop words by language, irregular forms, and related words. Data only.

**Time and conversation.** The rules in `time_expressions` cover English, German, Spanish and French. These tables have the most
common expressions of other languages: "today", "yesterday", the current and the previous week, month or year, "three days ago",
and days by name and by date. All words are folded.

**Stop words** include the parts of words that are split at an apostrophe ("don" of "don't", "ll" of "we'll"). They are folded but
keep their accents. The lists are made for conversations. Words about time are not stop words, because they answer questions about
time.

**Word forms.** `IRREGULAR` is applied to indexed texts and to questions: "bought" becomes "buy". `KINDRED` is applied to questions
only. It adds related words, with less weight than the question's own words, because a person may ask for a "photo" although the
word in the conversation was "picture".
"""

# ruff: noqa: RUF001 (words of other scripts; lists of words)
# ruff: noqa: RUF001, SIM905 (words of other scripts; lists of hundreds of words)

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
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
"""Patterns of phrases for a day, week, month or year. The key is the unit and the number of units ago."""
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
"""Pattern of the words that may precede a month."""
AT: Final = "(?:em|no dia|il|op)"
"""Pattern of the words that may precede a day of a month."""
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
"""The words for each number, starting with one."""
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
"""Each expression in these languages contains one of these words, or a name of a month, a weekday or a unit."""

# -- scripts without spaces, and those that attach particles to words ---------

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
"""Each expression in scripts without spaces contains a match of this pattern."""
DENSE_LAST_WEEK: Final = "上(?:个|個)?(?=星期|周|週|礼拜|禮拜)|先週の?|지난 ?주 ?"

# -- conversation --------------------------------------------------------------

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
"""Pattern of phrases that ask what was said. It has no word boundaries, because these scripts do not mark them."""
DENSE_TALK: Final = (
    "什么|什麼|哪些|哪个|哪個|关于|關於|问题|問題|内容|內容|消息|话题|話題|我们|我們|咱们|你们|问过|問過|问|問|说过|說過|说|說|讲|講|聊天|聊|谈|談|讨论|討論|提到|告诉|告訴"
    "|对话|對話|给我|给|過|过|推荐|推薦|建议|建議|回答"
    "|何(?:を|について|の|が|か)?|なに(?:を)?|どんな(?:こと|話)?|について|(?:聞|訊)(?:いた|きました|いて)|話(?:した|しました|していた)?|言(?:った|いました)|質問(?:した|しました)?|相談(?:した|しました)?"
    "|会話|尋ね(?:た|ました)|教えて(?:くれた|くれました|もらった)?|(?:でし|ですっ)?たっけ|でしたか|ですか|ました(?:か)?|でした|です|こと|もの|私|僕|俺|(?<=[日週月年])(?:は|に|の)"
    "|내가|제가|우리(?:가|는)?|너(?:는|가)?|네가|뭐(?:라고|를|가|에)?|뭘|무엇(?:을|에|이)?|무슨|어떤|대해서?|관해서?|것(?:을|은)?|(?:물어|얘기|이야기|질문|말|대화|논의|추천|제안)(?:을|를)?"
    "|(?:물|했|말했|봤|물었|었|나눴)(?:었)?(?:지|나|나요|어요|습니까|죠|어|더라)?|했(?:지|나|나요|어|어요|습니까)|알려 ?줘|보여 ?줘"
)
"""Pattern of words about the conversation in these scripts. They are ignored in a question that names a time ("What did we discuss
yesterday?")."""
FURTHER_ASKING: Final = """
    perguntei perguntou perguntamos falei falou falamos disse dissemos contei mencionei discutimos conversamos conversa conversas
    chiesto detto parlato raccontato menzionato discusso conversazione conversazioni
    gevraagd gezegd verteld besproken gepraat gesproken genoemd gesprek gesprekken
    спрашивал спрашивала спросил спросила говорил говорила говорили сказал сказала обсуждали обсуждал обсуждала разговор разговоры
    рассказывал рассказывала
"""
FURTHER_TALKING: Final = """
    recomendou sugeriu explicou respondeu escrevi perguntas mensagens temas assuntos lista resumo
    consigliato suggerito proposto spiegato risposto scritto domande messaggi argomenti elenco riassunto
    aangeraden aanbevolen voorgesteld uitgelegd geantwoord geschreven vragen berichten onderwerpen lijst samenvatting
    советовал посоветовал предлагал предложил объяснил ответил писал вопросы сообщения темы список
"""


ENGLISH: Final = "english"
"""The name of English in `LANGUAGES`. It is also the language of a text without recognisable stop words."""

_WORDS: Final = {
    ENGLISH: """
        a about above after again against ain all also although always am an and any anybody anyone anything anyway are aren as
        at be because been before being below between both but by can cannot cant could couldn did didn do does doesn doing don
        done dont down during each either else ever every everybody everyone everything few for from further get gets getting
        go goes going gonna got gotten had hadn has hasn have haven having he hence her here hers herself hey hi him himself his
        how however i if in indeed instead into is isn it its itself just kind let lets like ll lot lots made make makes making
        many may maybe me might mine more most much must mustn my myself need needn neither no nobody none nor not nothing now
        of off oh ok okay on once one ones only onto or other others otherwise our ours ourselves out over own per perhaps
        please quite rather re really s same shall shan she should shouldn since so some somebody someone something somewhere
        sort still such sure t than that thats the their theirs them themselves then there these they thing things this those
        though through thus to too toward towards u under until up upon us ve very via want wanna was wasn way we well went were
        weren what whatever when whenever where wherever whether which whichever while who whoever whom whose why will with
        within without won would wouldn wow y ya yeah yep yes yet you your yours yourself yourselves d m o gotta im ive id
        youre theyre hes shes whats isnt didnt doesnt wasnt wont able actually especially
    """,
    "german": """
        aber alle allem allen aller alles als also am an ander andere anderem anderen anderer anderes auch auf aus bei beim bin
        bis bist da dabei dadurch daher damit dann darauf darum das dass daß davon dazu dein deine deinem deinen deiner deines
        dem den denen denn der deren des dessen dich die dies diese diesem diesen dieser dieses dir doch dort du durch ein eine
        einem einen einer eines einige einigen einiges er es etwas euch euer eure eurem euren für gegen gehabt gibt habe haben
        hab hat hatte hatten hattest hattet hier hin hinter ich ihm ihn ihnen ihr ihre ihrem ihren ihrer ihres im in indem ins
        ist ja jede jedem jeden jeder jedes jene jenem jenen jener jenes jetzt kann kannst kein keine keinem keinen keiner
        keines können könnt könnte könnten man manche manchem manchen mancher manches mein meine meinem meinen meiner meines mich
        mir mit muss musste muß müssen nach nein nicht nichts noch nun nur ob oder ohne sehr sein seine seinem seinen seiner
        seines seit selbst sich sie sind so solche solchem solchen solcher solches soll sollen sollte sollten sollst sondern
        sonst sowie um und uns unser unsere unserem unseren unserer unter viel vom von vor wann war waren warst warum was weg weil
        weiter welche welchem welchen welcher welches wem wen wenn wer werde werden werdet weshalb wessen wie wieder wieso will
        wir wird wirst wo woher wohin wollen wollte wurde wurden während würde würden zu zum zur zwar zwischen über schon mal
        eigentlich bitte danke halt eben geht worüber wovon womit worum worin darüber darin daran
    """,
    "spanish": """
        a al algo algún alguna algunas alguno algunos ante antes aquel aquella aquellas aquello aquellos aquí así aun aunque bajo
        bien cada casi como con contra cosa cosas cual cuales cualquier cuando cuanto cuál cuáles cuándo cuánto cómo de del desde
        donde dos dónde durante e el ella ellas ello ellos en entonces entre era eran eras eres es esa esas ese eso esos esta
        estaba estaban estado estamos estar estas este esto estos estoy está están estás fue fueron fui ha haber había habían
        hace hacer hacia han has hasta hay haya he hemos hubo la las le les lo los luego me mi mientras mis mucha muchas mucho
        muchos muy más mí mía mío nada ni ningún ninguna ninguno no nos nosotras nosotros nuestra nuestras nuestro nuestros o os
        otra otras otro otros para pero poco por porque porqué pues que quien quienes quién quiénes qué se sea sean ser será si
        sido siempre sin sino sobre sois solo somos son soy su sus suya suyo sí sólo también tan tanto te tenemos tener tengo ti
        tiene tienen tienes todo todos toda todas tu tus tuvo tuya tuyo tú un una unas uno unos usted ustedes va vamos van vez
        voy vosotras vosotros vuestra vuestro y ya yo él hola gracias
    """,
    "french": """
        a ai aie ainsi alors après as au aucun aucune aura aurait auront aussi autre autres aux avaient avais avait avant avec
        avez aviez avions avoir avons ayant bien c car ce ceci cela celle celles celui ces cet cette ceux chaque chez ci comme
        comment d dans de depuis des dont donc du elle elles en encore entre es est et eu eux fait faire faut fut font ici il ils
        j je jusque l la le les leur leurs lors lui là m ma mais me mes mien moi mon même mêmes n ne ni non nos notre nous on ont
        or ou où par parce pas pendant peu peut peux plus plutôt pour pourquoi pouvez qu quand que quel quelle quelles quels
        quelque quelques qui quoi s sa sans se sera serait ses si sien soi sois soit sommes son sont sous suis sur t ta tandis
        te tes toi ton tous tout toute toutes tres très trop tu un une va vais vas vers veut veux voici voilà vont vos votre
        vous y à ça étaient étais était étant été êtes être bonjour merci oui aujourd hui
    """,
    "portuguese": """
        a ao aos aquela aquelas aquele aqueles aquilo as assim até cada coisa com como da das de dela delas dele deles depois do
        dos e ela elas ele eles em entre era eram essa essas esse esses esta estamos estar estas estava estavam este estes estou
        está estão eu foi fomos for foram fui há isso isto já lhe lhes lo mais mas me mesmo meu meus minha minhas muito muita
        muitos na nada nas nem no nos nossa nossas nosso nossos não nós num numa o onde os ou para pela pelas pelo pelos pode por
        porque porquê pra qual quais quando que quem quê se seja sem ser será seu seus só sobre somos sou sua suas são também te
        tem temos tenho ter teu teus teve tinha tive toda todas todo todos tu tua tuas tudo têm um uma umas uns vai você vocês
        vou à às é olá obrigado obrigada sim
    """,
    "italian": """
        a abbia abbiamo abbiano ad agli ai al alla alle allo anche ancora avere aveva avevo avete c che chi ci cui coi col come
        con contro cosa cosi così cose d da dagli dai dal dalla dalle dallo dei degli del della delle dello di dopo dove due e ed
        era erano eravamo ero essere fa fare fra fu gli ha hai hanno ho i il in io l la le lei li lo loro lui ma me mi mia mie
        miei mio molto ne negli nei nel nella nelle nello no noi non nostra nostre nostri nostro o ogni per perché però più poi
        prima qual quale quali quando quanta quanti quanto quella quelle quelli quello quel questa queste questi questo qui se
        sei sempre senza si sia siamo siano siete solo sono sopra sotto sta stai stanno stata stato stati sto su sua sue sugli sui
        sul sulla sulle sullo suo suoi te ti tra tu tua tue tuo tuoi tutti tutto tutta un una uno va vi voi vostra vostro è già
        ciao grazie sì
    """,
    "dutch": """
        aan af al alle alles als altijd andere bent ben bij daar dan dat de der deze die dit doch doen door dus een eens en er ge
        geen geweest goed haar had hadden heb hebben hebt heeft heel hem het hier hij hoe hun iemand iets ik in is ja je jij jou
        jouw jullie kan kon kunnen maar me meer men met mij mijn moet moeten mijne na naar niet niets nog nu of om omdat onder
        ons onze ook op over reeds te tegen ten toch toen tot u uit uw van veel voor waar waarom wanneer want waren was wat we wel
        welke werd werden wezen wie wij wil willen word worden wordt zal ze zelf zich zij zijn zo zonder zou zouden graag hallo
        dank bedankt ging gaan gaat
    """,
    "russian": """
        а без более бы был была были было быть в вам вас ваш ваша ваше ваши весь во вот все всего всей всем всех всё вы где да
        даже для до его ее её ей ему если есть еще ещё ж же за здесь и из или им ими их к как какая какие какой каких ко когда
        конечно которая которое которые который кто куда ли либо лишь меня мне много мной могу можно мой моя моё мои мы на над
        надо нам нас наш наша наше наши не него нее неё ней нельзя нет ни них но ну нужно о об оба один он она они оно от очень
        перед по под после потом потому почему почти при про просто раз разве с сам сама сами само свой своя свои сейчас со
        собой совсем так также такая такие такой там тебе тебя тем теперь то тобой тогда того тоже той только том тот тут ты
        твой твоя твои у уже хоть хотя чего чей чем через что чтобы чуть эта эти это этот этого этой этом я привет спасибо
    """,
}

LANGUAGES: Final = tuple(_WORDS)
"""The languages with stop words. Each has the name of its stemmer."""
STOPS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {language: frozenset(words.split()) for language, words in _WORDS.items()}
)
DENSE_STOPS: Final = frozenset("的了是在我你他她它们們吗嗎呢吧啊么麼有和就不都一这這那也很要个個为為什与與及")
"""Chinese characters without a meaning of their own. A single one is not a term, but in longer words they are parts of pairs."""
WEB: Final = frozenset({"http", "https", "www"})
"""Parts with which web addresses begin. They are not terms, because every address has them."""

ASKING: Final = frozenset(
    """
    say says said saying tell tells told telling talk talks talked talking mention mentions mentioned mentioning ask asks asked
    asking discuss discusses discussed discussing speak speaks spoke spoken conversation conversations chat chats chatted remember
    recall recalled according know
    sagen sage sagte sagst gesagt erzählt erzählen erzählte gefragt fragen fragte fragst gesprochen besprochen erwähnt reden
    redeten geredet gespräch unterhalten
    dije dijiste dijo dicho decir pregunté preguntaste preguntó preguntar hablé hablaste hablamos hablar mencioné mencionaste
    contaste conté conversación
    dit dire demandé demander parlé parler mentionné raconté discuté conversation
    """.split()
    + FURTHER_ASKING.split()
)
"""Words that refer to the conversation itself, not to its topic. A question is searched by them only if it has no other words."""

TALKING: Final = frozenset(
    """
    suggest suggested recommend recommended explain explained answer answered write wrote show showed decide decided agree agreed
    promise promised share shared send sent request requested work worked chatting cover covered question questions topic topics
    subject subjects message messages session sessions discussion discussions history thing things stuff everything anything list
    summarise summarize summary recap remind repeat review came come brought bring happen happens happened happening
    geschrieben gezeigt vorgeschlagen empfohlen wonach wovon worum themen thema nachricht nachrichten gespräch gespräche zeig zeige
    liste erinnere hast hattest geraten erklärt geantwortet zusammen fasse zusammenfassung wissen alles
    preguntas pregunta temas tema mensajes conversaciones resume resumen lista muéstrame recuérdame todo
    sujet sujets résume résumé liste montre-moi rappelle-moi conseillé
    recommandé proposé expliqué répondu
    """.split()
    + FURTHER_TALKING.split()
)
"""More words that refer to the conversation. A question that names a time and otherwise has only such words asks for all messages of
that time."""

_LOOKED_AT: Final = 80
"""Number of words at the beginning of a text that are used to detect its language."""
_PLACES: Final = {language: 8 * place for place, language in enumerate(LANGUAGES)}
"""The counts of all languages are kept in one number, with eight bits each, which is enough for `_LOOKED_AT` words. This is the
position of each language's first bit."""


def _build_counts() -> dict[str, int]:
    counts: dict[str, int] = {}
    for language, words in STOPS.items():
        for word in words:
            counts[word] = counts.get(word, 0) | 1 << _PLACES[language]
    return counts


_COUNTS: Final = _build_counts()


def find_language(words: Iterable[str]) -> str | None:
    """Return the language that has the most stop words among `words`, or None if there are no stop words.

    If languages have the same number of stop words, the first one in `LANGUAGES` is returned. English is the first of all.

    Args:
        words: folded words of a text. Only the first 80 are used.
    """
    hits = 0
    for word in islice(words, _LOOKED_AT):
        hits += _COUNTS.get(word if word.isalpha() else word.partition("'")[0].partition("-")[0], 0)
    if hits < 256:  # only the first language, or none
        return LANGUAGES[0] if hits else None
    return max(LANGUAGES, key=lambda language: hits >> _PLACES[language] & 255)


_FORMS: Final = """
    arise arose arisen | awake awoke awoken | bear bore borne | beat beaten | become became | begin began begun | bend bent |
    bet bets | bind bound | bite bit bitten | bleed bled | blow blew blown | break broke broken | breed bred | bring brought |
    build built | burn burnt | buy bought | catch caught | choose chose chosen | cling clung | come came | creep crept |
    deal dealt | dig dug | draw drew drawn | dream dreamt | drink drank drunk | drive drove driven | eat ate eaten |
    fall fell fallen | feed fed | feel felt | fight fought | find found | flee fled | fly flew flown | forbid forbade forbidden |
    forget forgot forgotten | forgive forgave forgiven | freeze froze frozen | give gave given | grind ground | grow grew grown |
    hang hung | hear heard | hide hid hidden | hold held | keep kept | kneel knelt | know knew known | lay laid | lead led |
    lean leant | leap leapt | learn learnt | leave left | lend lent | lie lain | light lit | lose lost | mean meant | meet met |
    mistake mistook mistaken | overcome overcame | pay paid | prove proven | quit quitting | ride rode ridden | ring rang rung |
    rise rose risen | run ran | saw sawn | see saw seen | seek sought | sell sold | send sent | sew sewn | shake shook shaken |
    shine shone | shoot shot | show shown | shrink shrank shrunk | sing sang sung | sink sank sunk | sit sat | sleep slept |
    slide slid | smell smelt | sow sown | speak spoke spoken | spell spelt | spend spent | spill spilt | spin spun |
    spoil spoilt | spring sprang sprung | stand stood | steal stole stolen | stick stuck | sting stung | strike struck |
    strive strove | swear swore sworn | sweep swept | swell swollen | swim swam swum | swing swung | take took taken |
    teach taught | tear tore torn | tell told | think thought | throw threw thrown | tread trod | understand understood |
    undergo underwent undergone | undertake undertook | wake woke woken | wear wore worn | weave wove woven | weep wept |
    win won | wind wound | withdraw withdrew | write wrote written | say said |
    child children kid kids | man men | woman women | person people | foot feet | tooth teeth | goose geese | mouse mice |
    wife wives | knife knives | shelf shelves | leaf leaves | half halves | loaf loaves | thief thieves |
    wolf wolves | scarf scarves | calf calves | self selves | hoof hooves | medium media | analysis analyses |
    crisis crises | diagnosis diagnoses | criterion criteria | better best | worse worst bad |
    mom mum mommy mummy mama mam | dad daddy papa | grandma granny gran nana grandmother | grandpa grandad granddad grandfather |
    tv television telly | bike bicycle | photo photos photograph photographs | fridge refrigerator | phone telephone |
    exam examination | lab laboratory | gym gymnasium | vet veterinarian | info information | app application |
    ad advert advertisement | plane aeroplane airplane | color colour | favorite favourite | neighbor neighbour |
    jewelry jewellery | pajamas pyjamas | theater theatre | center centre | gray grey | organize organise | realize realise |
    program programme | travel traveling travelling traveled travelled | mold mould | yoghurt yogurt | tire tyre | pro professional
"""
"""Groups separated by `|`: the base form first, then its irregular forms."""

_KINDRED: Final = """
    mom mother parents | dad father parents | child son daughter | husband spouse partner | wife spouse partner | sibling brother sister |
    boyfriend partner | girlfriend partner | family relatives parents | baby newborn infant | boss manager supervisor |
    colleague coworker | friend buddy pal | doctor physician | kid toddler | marry wedding married marriage | birthday turning |
    photo picture pic image snapshot | picture photo image painting | image photo picture | movie film | tv series show | book novel | song track music | painting paint art | drawing sketch draw |
    concert gig show | job work career position | career profession occupation | hire job | fire laid | company firm business employer |
    business store shop | shop store | buy purchase get order | sell sale | trip travel vacation holiday journey getaway |
    vacation holiday trip | travel trip visit | visit trip see | country nation | city town | home house apartment flat |
    house apartment home | move moving relocate | live reside home | car vehicle | bike cycling ride | dog puppy pup | cat kitten kitty |
    pet dog cat animal | animal pet | bird parrot | puppy dog | kitten cat | adopt adoption rescue | meal dinner lunch food |
    dinner supper meal | food dish meal cook | cook bake recipe | bake cake | dish recipe | drink beverage | dessert cake | snack treat |
    illness sick ill disease | sick ill | injury hurt injure | hurt injure pain | hospital clinic | medicine medication | health medical |
    exercise workout gym fitness | workout exercise gym | run jog race marathon | hike trail hiking walk | swim pool | game play match |
    competition contest tournament | tournament competition | contest competition | win prize award trophy | award prize | sport team |
    team squad | class course lesson workshop | course class | lesson class | workshop class | school college university |
    university college | degree graduate university | graduate graduation degree | study studying learn exam | teacher instructor tutor |
    exam test | hobby pastime passion | passion hobby | start begin | begin start | stop quit | quit stop leave | finish complete end |
    end finish | happy glad excited joy | sad upset down | angry mad upset | scared afraid nervous fear | afraid scared | fear scared afraid |
    nervous anxious stress | stress anxious overwhelmed | excited thrilled happy | proud pride | tired exhausted | love enjoy like |
    like enjoy love | enjoy love like fun | hate dislike | dislike hate | prefer favorite | favorite love best | recommend suggest |
    suggest recommend advice | advice tip suggest | help support | support help encourage | encourage support | gift present |
    present gift | receive got | give gift | plan planning | problem issue trouble | issue problem | fix repair | repair fix | broken broke |
    build construct | create build | design create | garden plant grow | plant garden flower | flower bloom | beach sea ocean coast |
    ocean sea beach | mountain peak hike | forest woods | lake water | camping camp tent | camp camping | park outdoors | weather rain storm |
    money cash pay | cost price pay | price cost | salary pay | volunteer charity | charity donate fundraiser | donate charity |
    church faith religion | religion faith church | faith religion | belief faith | instrument guitar piano violin | band group |
    dance dancing dancer | art painting | artist painter | writer author | author writer | write writing | read reading book |
    story tale novel | shirt clothes | clothes outfit | necklace jewelry | jewelry necklace ring bracelet | color paint |
    accident crash | crash accident | goal dream aim | dream goal | decide decision | decision decide | reason because |
    reaction felt | feel emotion | meet met | friendship friend | divorce split breakup | breakup split | pregnant expecting baby |
    die passed death | death died passed loss | funeral died passed | lose lost | big large huge | large big | small tiny little |
    little small | old ancient | new recent | fast quick | quick fast | beautiful gorgeous lovely pretty stunning | delicious tasty yummy |
    funny hilarious | smart clever | festival fair event | event festival party gathering | party celebration celebrate |
    celebrate celebration party | anniversary years celebrate | christmas holiday | school class | computer laptop pc |
    laptop computer | phone mobile cell | software app program | bug error issue | error bug failure | website site page | site website |
    meeting call | deadline due | customer client | client customer | bill invoice | invoice bill | train rail | flight plane fly |
    plane flight | restaurant cafe diner | cafe coffee | bar pub | hotel stay | gift gave | pottery clay ceramics | clay pottery |
    knit knitting yarn | photography camera photo | camera photography | surgery operation | allergy allergic | diet eating food |
    vegetarian vegan | language speak learn | speech talk | talk speech | interview job | promotion promoted | neighbor nextdoor |
    furniture sofa table | couch sofa | sofa couch | rug carpet | apartment flat | rent lease | landlord rent | kitchen cook |
    bedroom room | fire burn | doctor appointment | dentist teeth | therapist therapy counselor | therapy counseling | counseling therapy
"""
"""Groups separated by `|`: a word of a question first, then words that may have been said instead of it."""


def _iter_rows(table: str) -> Iterator[list[str]]:
    return (row.split() for row in table.split("|"))


IRREGULAR: Final[Mapping[str, str]] = MappingProxyType(
    {form: base for base, *forms in reversed(list(_iter_rows(_FORMS))) for form in forms}
)
"""The base form of each irregular form. If a form has two base forms, the first one in the table is used."""


def _build_kindred() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for word, *others in _iter_rows(_KINDRED):
        found[word] = tuple(dict.fromkeys([*found.get(word, ()), *others]))
    return found


KINDRED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(_build_kindred())
"""For each base form of a word in a question, the words that may have been said instead of it."""
