"""Stop words: by language, the words that tell nothing about what a text is about, and from them, which language it is in.

The lists hold what is left of a word when its elisions and apostrophes are gone ("don" of "don't", "ll" of "we'll"), folded, accents
kept. They are made for talk: greetings stay, for they are rare enough, and words of time stay, for they are what a question
about time is answered by.
"""

# ruff: noqa: RUF001, SIM905 (words of other scripts; lists of hundreds of words)

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Final

from holdfast.recall import timewords

ENGLISH: Final = "english"
"""The language of a text that shows no other."""

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
"""The languages with stop words, as their stemmers are named."""
STOPS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {language: frozenset(words.split()) for language, words in _WORDS.items()}
)
DENSE_STOPS: Final = frozenset("的了是在我你他她它们們吗嗎呢吧啊么麼有和就不都一这這那也很要个個为為什与與及")
"""Single characters of Chinese that tell nothing; one alone is no term. Those that make up other words are still in pairs."""
WEB: Final = frozenset({"http", "https", "www"})
"""What every address begins with."""

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
    + timewords.ASKING.split()
)
"""Words of a question that are about the conversation and not about what it was about: no terms of it, unless it has no others."""

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
    + timewords.TALKING.split()
)
"""Words that are about the conversation where a question asks for a time of it, and for nothing else."""

_LOOKED_AT: Final = 80
"""Words by which a language is told."""
_PLACES: Final = {language: 8 * place for place, language in enumerate(LANGUAGES)}
"""Where each language counts in one number for all of them: eight bits, in which `_LOOKED_AT` fits."""


def _counts() -> dict[str, int]:
    counts: dict[str, int] = {}
    for language, words in STOPS.items():
        for word in words:
            counts[word] = counts.get(word, 0) | 1 << _PLACES[language]
    return counts


_COUNTS: Final = _counts()


def language_of(words: Iterable[str]) -> str | None:
    """The language most of whose stop words are among `words`, folded; None where none of any is.

    Of equal languages the first of `LANGUAGES` it is, English before all.
    """
    hits = 0
    for word in islice(words, _LOOKED_AT):
        hits += _COUNTS.get(word if word.isalpha() else word.partition("'")[0].partition("-")[0], 0)
    if hits < 256:  # of the first language, or none
        return LANGUAGES[0] if hits else None
    return max(LANGUAGES, key=lambda language: hits >> _PLACES[language] & 255)
