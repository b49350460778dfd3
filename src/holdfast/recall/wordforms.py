"""Word forms that no stemmer finds, and words that everyday speech swaps for each other: two small tables of English.

`IRREGULAR` is applied to what is indexed and to what is asked: "bought" is "buy". `KINDRED` only widens a question, with less
weight than its own words: somebody who remembers vaguely asks for a "photo" where "picture" was said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

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
"""The base form first, then what becomes it."""

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
"""The word asked for first, then what may have been said instead."""


def _rows(table: str) -> Iterator[list[str]]:
    return (row.split() for row in table.split("|"))


IRREGULAR: Final[Mapping[str, str]] = MappingProxyType(
    {form: base for base, *forms in reversed(list(_rows(_FORMS))) for form in forms}
)
"""By form, its base; of two bases the first of the table it is."""


def _kindred() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for word, *others in _rows(_KINDRED):
        found[word] = tuple(dict.fromkeys([*found.get(word, ()), *others]))
    return found


KINDRED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(_kindred())
"""By base form of a word of a question, what else may have been said."""
