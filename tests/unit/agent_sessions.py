"""Short invented sessions of different kinds of agents, other than the recorded ones.

The digest is tested on them in addition to the recordings: code and logs, prose and addresses, tables,
other languages and scripts, ids that are only digits, long commands. Each ends by using values from much earlier.
"""

# ruff: noqa: RUF001 (punctuation of other scripts is what some sessions are written in)

from __future__ import annotations

import json
from itertools import count
from typing import Any

from holdfast.domain.messages import Message, ToolCall
from holdfast.wire.transcripts import Recording

_numbers = count()


def user(text: str) -> list[Message]:
    """Make a user message."""
    return [Message(role="user", content=text)]


def reply(text: str) -> list[Message]:
    """Make an assistant message."""
    return [Message(role="assistant", content=text)]


def call(name: str, result: Any, /, **arguments: Any) -> list[Message]:
    """A tool call with its result."""
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    tool = ToolCall(f"call-{next(_numbers)}", name, json.dumps(arguments, ensure_ascii=False))
    return [Message(role="assistant", tool_calls=(tool,)), Message(role="tool", content=text, tool_call_id=tool.id)]


def _session(name: str, *rounds: list[Message]) -> Recording:
    return Recording(name, tuple(message for messages in rounds for message in messages))


def coding() -> Recording:
    """A coding agent: paths, greps, a traceback, a diff, and an instruction in the middle."""
    source = "\n".join(
        f"def step_{n}(state: State, value: int) -> State:\n    return state.with_total(state.total + value * {n})\n"
        for n in range(24)
    )
    grep = "\n".join(f"src/kelp/pricing/rules.py:{n * 7}:    rate = rates[zone_{n}]" for n in range(14))
    tree = "\n".join(
        f"src/kelp/{a}/{b}.py" for a in ("pricing", "orders", "users") for b in ("rules", "models", "api", "jobs")
    )
    trace = (
        "============ FAILURES ============\n____ test_rounding_of_refunds ____\n\n"
        "tests/pricing/test_refunds.py:48: in test_rounding_of_refunds\n    assert refund(order) == Decimal('12.35')\n"
        "src/kelp/pricing/refunds.py:112: in refund\n    return quantize(total, exponent=CENTS)\n"
        "src/kelp/money/rounding.py:27: in quantize\n    return value.quantize(exponent, rounding=ROUND_DOWN)\n"
        "E   AssertionError: assert Decimal('12.34') == Decimal('12.35')\n1 failed, 213 passed in 4.71s"
    )
    return _session(
        "coding",
        user("Refunds in /srv/kelp come out a cent too low. Find out why and fix it. Do not touch anything under src/kelp/legacy."),
        call("bash", tree, command="cd /srv/kelp && git ls-files 'src/**/*.py' | head -50"),
        call("bash", trace, command="cd /srv/kelp && python -m pytest tests/pricing -x -q 2>&1 | tail -20"),
        call("read_file", source, path="src/kelp/pricing/refunds.py"),
        call("grep", grep, pattern="rates\\[", path="src/kelp/pricing"),
        reply("The rounding mode in src/kelp/money/rounding.py is ROUND_DOWN. Shall I change it to ROUND_HALF_UP?"),
        user("Yes, but keep ROUND_DOWN for taxes: accounting needs that. And the ticket is KELP-4417, put it in the commit."),
        call("read_file", source, path="src/kelp/money/rounding.py"),
        call("edit_file", "ok: 1 replacement", path="src/kelp/money/rounding.py", old="rounding=ROUND_DOWN", new="rounding=mode"),
        call("bash", "1 failed, 213 passed in 4.80s\nE   TypeError: quantize() missing 1 required keyword-only argument: 'mode'\n"
             "src/kelp/tax/levies.py:61: TypeError", command="cd /srv/kelp && python -m pytest tests -x -q 2>&1 | tail -20"),
        call("read_file", source, path="src/kelp/tax/levies.py"),
        call("edit_file", "ok: 1 replacement", path="src/kelp/tax/levies.py", old="exponent=CENTS)", new="exponent=CENTS, mode=ROUND_DOWN)"),
        call("bash", "214 passed in 4.66s", command="cd /srv/kelp && python -m pytest tests -x -q 2>&1 | tail -20"),
        call("read_file", source, path="src/kelp/pricing/refunds.py"),
        call("edit_file", "ok", path="src/kelp/pricing/refunds.py", old="return quantize(total, exponent=CENTS)", new="return quantize(total, exponent=CENTS, mode=ROUND_HALF_UP)"),
        call("run_test", "1 passed", file="tests/pricing/test_refunds.py", name="test_rounding_of_refunds"),
        call("commit", "[main 3fe91c2] Round refunds half up", ticket="KELP-4417", files=["src/kelp/money/rounding.py", "src/kelp/tax/levies.py", "src/kelp/pricing/refunds.py"]),
    )  # fmt: skip


def operations() -> Recording:
    """An on-call agent: pods, logs, metrics, a decision against what was proposed."""
    pods = "NAME READY STATUS RESTARTS AGE\n" + "\n".join(
        f"checkout-{h} 1/1 {s} {n} 3d" for n, (h, s) in enumerate(
            [("7d9f8b6c4-x2lqp", "Running"), ("7d9f8b6c4-9kzvt", "CrashLoopBackOff"), ("7d9f8b6c4-m4wjs", "Running")]))  # fmt: skip
    log = "\n".join(
        f"2026-03-02T04:{n:02}:1{n % 10}Z {'ERROR' if n == 33 else 'INFO'} "
        + (
            "pool exhausted: db-orders-3.internal:5432 refused, trace 8f31ac77e0"
            if n == 33
            else f"GET /cart/{n} 200 {n}ms"
        )
        for n in range(60)
    )
    metrics = [{"host": f"db-orders-{n}.internal", "connections": 100 * n, "lag_ms": n * 3} for n in range(1, 6)]
    return _session(
        "operations",
        user("Checkout is failing for some customers in eu-west-1. Please look into it, namespace shop-prod."),
        call("kubectl_get", pods, namespace="shop-prod", kind="pods"),
        call("kubectl_logs", log, namespace="shop-prod", pod="checkout-7d9f8b6c4-9kzvt"),
        call("query_metrics", metrics, service="db-orders", window="30m"),
        reply("db-orders-3.internal refuses connections. I could restart checkout-7d9f8b6c4-9kzvt, or fail over db-orders-3. Which one?"),
        user("Fail over. Never restart pods in shop-prod without asking me, Jonas has the change window: CHG0091427."),
        call("get_change", {"id": "CHG0091427", "owner": "jonas.weiss", "approved": True, "until": "2026-03-02T06:00Z"}, change="CHG0091427"),
        call("kubectl_logs", log.replace("GET", "PUT"), namespace="shop-prod", pod="checkout-7d9f8b6c4-x2lqp"),
        call("get_trace", {"trace": "8f31ac77e0", "spans": [{"span": f"s{n}", "ms": n * 10, "op": f"sql.{n}"} for n in range(25)]}, trace="8f31ac77e0"),
        call("fail_over", {"job": "fo-20260302-17", "state": "running"}, host="db-orders-3.internal", change="CHG0091427"),
        call("query_metrics", metrics, service="checkout", window="5m"),
        call("job_status", {"job": "fo-20260302-17", "state": "done", "primary": "db-orders-4.internal"}, job="fo-20260302-17"),
        reply("The failover is done, db-orders-4.internal is primary. Errors are down to zero. Shall I page jonas.weiss?"),
        user("No. Write the incident note."),
        call("create_note", "INC-20931", change="CHG0091427", hosts=["db-orders-3.internal", "db-orders-4.internal"], pod="checkout-7d9f8b6c4-9kzvt", trace="8f31ac77e0", job="fo-20260302-17"),
    )  # fmt: skip


def research() -> Recording:
    """A research agent: prose, addresses, a table, sources to cite."""
    prose = (
        "Giant kelp grows up to half a metre a day in cold, nutrient-rich water. Its holdfast does not take up nutrients; "
        "it anchors the alga to rock. After the marine heatwave of 2014 canopy cover off Tasmania fell by more than ninety "
        "per cent, and most of it has not come back. Urchin barrens replaced it in many places. "
    )
    hits = [
        {"title": f"Kelp forest study {n}", "url": f"https://journals.example.org/kelp/{2010 + n}/article-{n * 37}.html", "snippet": prose[n * 9 : n * 9 + 150]}
        for n in range(9)
    ]  # fmt: skip
    table = "| site | year | cover_pct | depth_m |\n|---|---|---|---|\n" + "\n".join(
        f"| Fortescue Bay {n} | {2012 + n} | {90 - 7 * n}.4 | {8 + n} |" for n in range(10)
    )
    return _session(
        "research",
        user("Write me a short report on the decline of kelp forests off Tasmania. Only peer-reviewed sources, please, in British English."),
        call("web_search", hits, query="giant kelp decline Tasmania canopy cover"),
        call("open_page", prose * 4 + "Contact: Dr Imogen Farrow, imogen.farrow@utas.example. DOI 10.1234/mepf.2019.0417. " + prose * 3,
             url="https://journals.example.org/kelp/2013/article-111.html"),
        call("open_page", prose * 2 + table, url="https://journals.example.org/kelp/2016/article-222.html"),
        reply("I found cover data for Fortescue Bay from 2012 to 2021. Do you want the table in the report?"),
        user("Yes, as an appendix. Leave out anything from before 2014."),
        call("open_page", prose * 6, url="https://journals.example.org/kelp/2017/article-259.html"),
        call("fetch_doi", {"doi": "10.1234/mepf.2019.0417", "title": "Canopy loss after a heatwave", "authors": ["Farrow, I.", "Okafor, C."], "peer_reviewed": True, "abstract": prose * 3}, doi="10.1234/mepf.2019.0417"),
        call("web_search", hits[::-1], query="urchin barrens Centrostephanus spread"),
        call("open_page", prose * 6, url="https://journals.example.org/kelp/2015/article-185.html"),
        call("save_citation", "saved", doi="10.1234/mepf.2019.0417", url="https://journals.example.org/kelp/2013/article-111.html"),
        call("save_citation", "saved", url="https://journals.example.org/kelp/2016/article-222.html", author="imogen.farrow@utas.example"),
    )  # fmt: skip


def retail() -> Recording:
    """A shop's agent: ids that are only digits, several orders, items to choose from, a change of mind."""

    def order(name: str, items: list[tuple[str, str, float]], status: str) -> dict[str, Any]:
        return {"order_id": name, "user_id": "noor_haddad_7213", "address": {"street": "12 Quay Road", "zip": "19122"},
                "items": [{"name": n, "product_id": f"{int(i) // 7}", "item_id": i, "price": p, "options": {"color": "blue", "size": "M"}} for n, i, p in items],
                "payment_history": [{"type": "payment", "amount": sum(p for _, _, p in items), "method": "gift_card_3310927"}], "status": status}  # fmt: skip

    first = order(
        "#W5194380",
        [("Desk Lamp", "6805564527", 158.41), ("Kettle", "8142779083", 54.2), ("Boots", "1262139877", 239.99)],
        "delivered",
    )
    second = order("#W2077164", [("Backpack", "9851293632", 193.38), ("Notebook", "7579176349", 29.28)], "pending")
    third = order("#W8835847", [("Headphones", "3557711149", 205.35)], "cancelled")
    variants = {
        "name": "Desk Lamp",
        "product_id": "6817146515",
        "variants": {
            str(i): {
                "item_id": str(i),
                "available": i % 2 == 0,
                "price": 100 + i % 97,
                "options": {"brightness": "high" if i % 3 else "low", "power": "battery"},
            }
            for i in range(9083642334, 9083642346)
        },
    }
    return _session(
        "retail",
        user("Hi, I'd like to exchange the lamp from one of my orders. My name is Noor Haddad, zip 19122."),
        call("find_user_id_by_name_zip", "noor_haddad_7213", first_name="Noor", last_name="Haddad", zip="19122"),
        call("get_user_details", {"name": {"first_name": "Noor"}, "orders": ["#W5194380", "#W2077164", "#W8835847"], "payment_methods": {"gift_card_3310927": {"id": "gift_card_3310927", "balance": 62}, "paypal_8860147": {"id": "paypal_8860147"}}}, user_id="noor_haddad_7213"),
        call("get_order_details", third, order_id="#W8835847"),
        call("get_order_details", first, order_id="#W5194380"),
        call("get_product_details", variants, product_id="6817146515"),
        reply("Order #W5194380 has the lamp (item 6805564527). I can offer item 9083642338, bright, battery, for 158.00. The difference goes to which payment method?"),
        user("Take the brighter one. Refund to PayPal, not to the gift card."),
        reply("To confirm: exchange 6805564527 for 9083642338 in #W5194380, difference to paypal_8860147. Shall I go ahead?"),
        user("yes"),
        call("exchange_items", {"status": "exchange requested", "order_id": "#W5194380"}, order_id="#W5194380", item_ids=["6805564527"], new_item_ids=["9083642338"], payment_method_id="paypal_8860147"),
        user("Good. And cancel the other pending order, I no longer need it."),
        call("get_order_details", second, order_id="#W2077164"),
        reply("Order #W2077164 (Backpack 9851293632, Notebook 7579176349) would be refunded to gift_card_3310927. Proceed?"),
        user("Actually keep the backpack, only drop the notebook. Or is that impossible?"),
        reply("A pending order can only be cancelled as a whole, I'm afraid."),
        user("Then change its address to 4 Harbour Lane, 19147 instead."),
        call("modify_address", {"status": "pending", "address": {"street": "4 Harbour Lane", "zip": "19147"}}, order_id="#W2077164", user_id="noor_haddad_7213", zip="19147"),
        call("send_receipt", "sent", user_id="noor_haddad_7213", orders=["#W5194380", "#W2077164"], new_item="9083642338"),
    )  # fmt: skip


def telecom() -> Recording:
    """A telephone company's agent: customer, lines, bills, and steps that the user does on the device."""
    lines = [
        {
            "line_id": f"L10{n}",
            "phone_number": f"555-123-20{n:02}",
            "plan": f"P{n}",
            "data_used_gb": n * 1.7,
            "status": "Suspended" if n == 12 else "Active",
        }
        for n in range(8, 16)
    ]
    bills = [
        {
            "bill_id": f"B{n}",
            "amount_due": 40 + n,
            "due": f"2025-0{n % 9 + 1}-15",
            "status": "Overdue" if n == 1224 else "Paid",
        }
        for n in range(1219, 1227)
    ]
    device = "Airplane Mode: OFF\nSIM: active\nMobile Data: OFF\nRoaming: ON\nAPN: kelp.internet\nPreferred network: 4G only\nData Saver: ON"
    return _session(
        "telecom",
        user("My phone has no data since yesterday. The number is 555-123-2012, I'm abroad in France."),
        call("get_customer_by_phone", {"customer_id": "C1047", "full_name": "Lena Brandt", "dob": "1985-06-15", "line_ids": [line["line_id"] for line in lines]}, phone_number="555-123-2012"),
        call("get_details_by_id", lines, id="C1047"),
        call("get_bills", bills, customer_id="C1047"),
        reply("Bill B1224 is overdue, so the line is suspended. Would you like to pay 1264 now?"),
        user("I'd rather not pay by card. Send it to my account ending 8813."),
        call("send_payment_request", {"bill_id": "B1224", "status": "Awaiting payment"}, customer_id="C1047", bill_id="B1224"),
        user("ok done. still nothing"),
        call("check_payment", {"bill_id": "B1224", "status": "Paid"}, bill_id="B1224"),
        call("resume_line", {"line_id": "L1012", "status": "Active"}, customer_id="C1047", line_id="L1012"),
        reply("The line is active again. Please restart the phone, and tell me what the status bar shows."),
        user("Restarted, it shows no data icon. Here are my settings:\n" + device),
        reply("Mobile Data is off and Data Saver is on. Please turn Mobile Data on. Did that help?"),
        user("A bit, but slow. I already tried the APN reset, that did not help."),
        call("get_usage", [{"day": f"2025-05-{n:02}", "gb": n / 10} for n in range(1, 29)], customer_id="C1047", line_id="L1012"),
        call("refuel_data", {"line_id": "L1012", "gb": 2, "charge": 4.0}, customer_id="C1047", line_id="L1012", gb=2),
        call("enable_roaming", {"status": "ok"}, customer_id="C1047", line_id="L1012", phone="555-123-2012"),
    )  # fmt: skip


def german() -> Recording:
    """Support in German: an order, a complaint, a bank account."""
    return _session(
        "german",
        user("Guten Tag, meine Waschmaschine wurde beschädigt geliefert. Bestellnummer 4711-88302-B."),
        call("bestellung_suchen", {"bestellung": "4711-88302-B", "kunde": "K-20931", "artikel": [{"nr": f"WM{n}-{n * 31}", "bezeichnung": f"Artikel {n}", "preis": f"{n},99 €"} for n in range(300, 318)], "lieferung": {"spediteur": "Möwe Logistik", "sendung": "MWL0099217DE", "datum": "12.03.2026"}}, bestellnummer="4711-88302-B"),
        reply("Das tut mir leid. Möchten Sie eine Reparatur, einen Austausch oder eine Gutschrift?"),
        user("Einen Austausch, aber bitte nicht am Mittwoch liefern. Erreichbar bin ich nur unter 0171 5550 8842."),
        call("lager_pruefen", [{"lager": f"Halle {n}", "artikel": "WM304-9424", "bestand": n % 3, "frei_ab": f"{10 + n}.04.2026"} for n in range(15)], artikel="WM304-9424"),
        call("spediteur_termine", "\n".join(f"Termin T-{n}{n}: {n}.04.2026, {8 + n % 9}:00 Uhr, frei" for n in range(10, 28)), sendung="MWL0099217DE"),
        reply("Ich kann Ihnen Freitag, den 17.04.2026 anbieten (Termin T-1717). Passt das?"),
        user("Ja, passt."),
        call("termin_buchen", {"status": "gebucht", "bestätigung": "AV-771204"}, termin="T-1717", sendung="MWL0099217DE", telefon="0171 5550 8842"),
        user("Und die Rückerstattung der Versandkosten bitte auf DE02 1203 0000 0000 2020 51."),
        call("kunde_laden", {"kunde": "K-20931", "notizen": [f"Anruf {n}: Rückfrage zu Rechnung {n}" for n in range(20)]}, kunde="K-20931"),
        call("erstatten", "ok", kunde="K-20931", iban="DE02 1203 0000 0000 2020 51", bestellnummer="4711-88302-B"),
        call("notiz", "ok", kunde="K-20931", text="AV-771204"),
    )  # fmt: skip


def chinese() -> Recording:
    """Support in Chinese, with keys and values of its own script."""
    return _session(
        "chinese",
        user("你好，我的订单还没有到。手机号是13800138042，请不要打电话，发短信就好。"),
        call("查询用户", {"用户编号": "U-66021", "姓名": "林晓雨", "订单": [f"DD2026{n}" for n in range(1101, 1109)]}, 手机号="13800138042"),
        call("查询订单", {"订单号": "DD20261104", "状态": "已发货", "快递": "海鸥速运", "运单号": "HO7731900428", "商品": [{"名称": f"商品{n}号", "货号": f"SKU-{n}", "价格": n} for n in range(700, 716)]}, 订单号="DD20261104"),
        call("查询物流", "\n".join(f"2026-03-{n:02} 10:{n} 包裹到达中转站{n}" for n in range(1, 24)), 运单号="HO7731900428"),
        reply("您的包裹停在中转站23。需要我为您催促，还是改送到新地址？"),
        user("改送到上海市浦东新区张杨路500号，周末送。"),
        call("修改地址", {"结果": "成功", "工单": "GD-90417"}, 运单号="HO7731900428", 地址="上海市浦东新区张杨路500号"),
        call("查询订单", {"订单号": "DD20261106", "状态": "待付款", "备注": "客户要求开发票"}, 订单号="DD20261106"),
        reply("DD20261106还没有付款，要取消吗？"),
        user("好的"),
        call("取消订单", {"结果": "已取消"}, 订单号="DD20261106", 用户编号="U-66021"),
        call("发送短信", "成功", 手机号="13800138042", 工单="GD-90417"),
    )  # fmt: skip


def analysis() -> Recording:
    """A data analyst's agent: schemas, SQL, CSV, a column that turned out wrong."""
    schema = "\n".join(f"{t}.{c} {k}" for t in ("fact_orders", "dim_customer", "dim_region") for c, k in
                       (("id", "bigint"), ("created_at", "timestamp"), ("region_code", "varchar(8)"), ("net_amount_eur", "numeric"), ("gross_amount_eur", "numeric"), ("is_test", "boolean")))  # fmt: skip
    rows = "region_code,orders,net_amount_eur\n" + "\n".join(f"R{n:03},{n * 13},{n * 1031}.55" for n in range(40))
    return _session(
        "analysis",
        user("How did net revenue by region develop in Q1 2026? Exclude test orders. Warehouse is wh_kelp_prod, schema mart_sales."),
        call("list_tables", schema, warehouse="wh_kelp_prod", schema="mart_sales"),
        call("run_sql", "ERROR: column fact_orders.amount does not exist\nHINT: Perhaps you meant fact_orders.net_amount_eur", sql="select region_code, sum(amount) from mart_sales.fact_orders group by 1"),
        call("run_sql", rows, sql="select region_code, count(*) orders, sum(net_amount_eur) net_amount_eur from mart_sales.fact_orders where not is_test group by 1"),
        reply("R039 leads with 40209.55. Should returns be netted? They are in fact_returns."),
        user("Yes, and use R017 as the base, that is our home market. Numbers in thousands."),
        call("list_tables", schema.replace("fact_orders", "fact_returns"), warehouse="wh_kelp_prod", schema="mart_returns"),
        call("run_sql", rows.replace("orders", "returns"), sql="select region_code, sum(net_amount_eur) from mart_returns.fact_returns group by 1"),
        call("save_query", {"query_id": "q_81f7d2", "status": "saved"}, warehouse="wh_kelp_prod", name="q1_revenue_by_region"),
        call("run_sql", rows, sql="select * from mart_sales.dim_region"),
        call("make_chart", {"chart_id": "ch_0042af", "rows": 40}, query="q_81f7d2", base="R017", measure="net_amount_eur"),
        call("share", "ok", chart="ch_0042af", query="q_81f7d2", name="q1_revenue_by_region", warehouse="wh_kelp_prod"),
    )  # fmt: skip


def returns() -> Recording:
    """A long chat in German: a repeated order, a withdrawn request, a corrected account, a promise, a changed status."""

    def positions(state: str) -> list[dict[str, Any]]:
        return [{"pos": n, "artikel": f"AR-{5500 + n * 7}", "bezeichnung": f"Regalboden {60 + n * 10} cm", "menge": n % 3 + 1, "status": state} for n in range(1, 7)]  # fmt: skip

    return _session(
        "returns",
        user("Hallo, in meiner Lieferung fehlt etwas. Bestellung RG-2026-04418. Ich brauche alles bis zum 24.06.2026, da ziehen wir um."),
        call("bestellung_laden", {"bestellung": "RG-2026-04418", "kunde": {"nummer": "K-771204", "name": "Annika Sørensen", "ort": "Flensburg"}, "empfaenger": {"name": "Jonas Sørensen", "ort": "Kiel"}, "positionen": positions("geliefert"), "betrag": "412,60 €"}, bestellung="RG-2026-04418"),
        reply("Ich sehe sechs Positionen, alle als geliefert gemeldet. Welche davon fehlt?"),
        user("AR-5521 fehlt ganz, und bei AR-5535 ist eine Ecke abgebrochen. Ach nein, AR-5528 ist beschädigt, 5535 ist in Ordnung."),
        call("reklamation_anlegen", {"fehler": "Reklamation nicht möglich: Foto fehlt"}, bestellung="RG-2026-04418", artikel=["AR-5521", "AR-5528"], grund="Transportschaden"),
        reply("Für AR-5528 brauche ich ein Foto. Können Sie eines schicken?"),
        user("Ist unterwegs: https://bilder.example/k/ecke-5528.jpg"),
        call("reklamation_anlegen", {"reklamation": "RK-90331", "status": "offen"}, bestellung="RG-2026-04418", artikel=["AR-5521", "AR-5528"], foto="https://bilder.example/k/ecke-5528.jpg"),
        call("lager_abfragen", [{"lager": lager, "artikel": artikel, "bestand": n, "lieferbar_ab": f"{18 + n}.06.2026"} for n, (lager, artikel) in enumerate((x, y) for x in ("Hamburg", "Lübeck", "Erfurt") for y in ("AR-5521", "AR-5528"))], artikel="AR-5521"),
        reply("Ich kann beide Böden am 22.06.2026 aus Lübeck schicken, oder Ihnen 58,40 € gutschreiben. Was ist Ihnen lieber?"),
        user("Dann lieber die Gutschrift für AR-5528, und AR-5521 bitte nachliefern. Die Gutschrift auf DE75 5121 0800 1245 1261 99."),
        reply("Gern. Soll die Nachlieferung an Jonas Sørensen in Kiel gehen, wie die Bestellung?"),
        user("Nein, an mich, Norderstraße 14 in Flensburg. Und bitte nicht beim Nachbarn abgeben, der ist verreist."),
        call("nachlieferung_anlegen", {"auftrag": "NL-55018", "status": "geplant", "termin": "22.06.2026"}, reklamation="RK-90331", artikel="AR-5521", adresse={"strasse": "Norderstraße 14", "ort": "Flensburg"}, hinweis="nicht beim Nachbarn abgeben"),
        user("Moment, die IBAN war falsch. Richtig ist DE12 5001 0517 0648 4898 90."),
        call("gutschrift_anlegen", {"gutschrift": "GS-3107", "betrag": "58,40 €", "status": "vorgemerkt"}, reklamation="RK-90331", iban="DE12 5001 0517 0648 4898 90"),
        call("auftrag_laden", {"auftrag": "NL-55018", "status": "verschoben", "termin": "25.06.2026", "grund": "Streik im Lager"}, auftrag="NL-55018"),
        reply("Leider verschiebt sich die Nachlieferung auf den 25.06.2026, also nach Ihrem Umzug. Soll ich sie an die neue Adresse umleiten?"),
        user("Ja, an Hafendamm 3, 24937 Flensburg. Sagen Sie mir Bescheid, wenn das klappt, per Mail, nicht am Telefon."),
        call("auftrag_umleiten", {"auftrag": "NL-55018", "status": "umgeleitet"}, auftrag="NL-55018", adresse={"strasse": "Hafendamm 3", "plz": "24937"}),
        call("mail_senden", "gesendet", kunde="K-771204", auftrag="NL-55018", gutschrift="GS-3107", text="Umleitung nach Hafendamm 3"),
    )  # fmt: skip


def cleaning() -> Recording:
    """A data agent in a notebook: tables as CSV, tracebacks, numbers it worked out, assumptions that the user corrects."""
    head = "sensor_id,site,installed,unit,offset_c\n" + "\n".join(
        f"TX-{n:03}-{'ABC'[n % 3]},Bryggen {n % 4},2025-0{n % 9 + 1}-1{n % 8},celsius,{n / 10}" for n in range(1, 31)
    )
    readings = "reading_at,sensor_id,value\n" + "\n".join(
        f"2026-01-{n % 28 + 1:02}T0{n % 9}:15,TX-{n % 30 + 1:03}-{'ABC'[(n % 30 + 1) % 3]},{'-999' if n % 17 == 4 else round(3 + n / 7, 2)}"
        for n in range(60)
    )
    trace = (
        'Traceback (most recent call last):\n  File "/home/kelp/nb/clean.py", line 41, in <module>\n    merged = readings.merge(sensors, on="sensor", how="left")\n'
        '  File "/opt/env/lib/python3.12/site-packages/pandas/core/frame.py", line 10832, in merge\n    return merge(\n'
        "KeyError: 'sensor'"
    )
    missing = "\n".join(
        f"WARNING {n:02}: value out of range for TX-{n:03}-{'ABC'[n % 3]}, row {n * 31}, dropped" for n in range(1, 26)
    )
    return _session(
        "cleaning",
        user("Please clean data/readings_2026.csv, and tell me the mean temperature by site for January. -999 means no reading. Write nothing into data/, only into out/."),
        call("read_csv", head, path="data/sensors.csv", rows=30),
        call("read_csv", readings, path="data/readings_2026.csv", rows=60),
        call("run_python", trace, code="import pandas as pd\nreadings = pd.read_csv('data/readings_2026.csv')\nsensors = pd.read_csv('data/sensors.csv')\nmerged = readings.merge(sensors, on='sensor', how='left')"),
        call("run_python", "rows: 60\nunmatched: 0\nmissing: 4\nmean: 7.31", code="merged = readings.merge(sensors, on='sensor_id', how='left', validate='m:1')\nprint(len(merged), merged.site.isna().sum())"),
        reply("60 rows are matched and 4 have no reading. I assume that offset_c has to be subtracted from value. Is that right?"),
        user("No, added. And Bryggen 3 was moved in 2025-11, leave its sensors out of the means."),
        call("run_python", missing + "\nERROR: TX-014-C has two offsets, 1.4 and 4.1; took the first\nkept 52 of 60 rows, checksum 9f31c0de", code="from cleaning import validate\nclean = validate(merged[merged.site != 'Bryggen 3'].assign(value=merged.value + merged.offset_c))"),
        reply("TX-014-C has two offsets in the table, 1.4 and 4.1. Which one holds?"),
        user("4.1, it was recalibrated on 2025-12-03 by Ragnhild, see the mail of ragnhild.moe@kelp.example."),
        call("run_python", "site,mean_c,rows\nBryggen 0,8.42,18\nBryggen 1,7.95,17\nBryggen 2,8.11,17", code="clean.loc[clean.sensor_id == 'TX-014-C', 'offset_c'] = 4.1\nprint(clean.groupby('site').value.agg(['mean', 'size']))"),
        call("write_file", "PermissionError: [Errno 13] Permission denied: 'out/means_january.csv'", path="out/means_january.csv", content="site,mean_c\nBryggen 0,8.42\nBryggen 1,7.95\nBryggen 2,8.11"),
        reply("out/ cannot be written to. Shall I write to /tmp/kelp-out instead?"),
        user("yes please"),
        call("write_file", "ok", path="/tmp/kelp-out/means_january.csv", content="site,mean_c\nBryggen 0,8.42\nBryggen 1,7.95\nBryggen 2,8.11"),
        call("read_csv", readings.replace("2026-01", "2026-02"), path="data/readings_2026_02.csv", rows=60),
        user("Good. Now do the same for February, and send both files to Ragnhild."),
        call("run_python", "site,mean_c,rows\nBryggen 0,6.02,16\nBryggen 1,5.77,18\nBryggen 2,5.90,15", code="february = clean_month('data/readings_2026_02.csv', offsets={'TX-014-C': 4.1}, leave_out=['Bryggen 3'])"),
        call("send_mail", "queued as 4C7F21", to="ragnhild.moe@kelp.example", attachments=["/tmp/kelp-out/means_january.csv", "/tmp/kelp-out/means_february.csv"]),
    )  # fmt: skip


def booking() -> Recording:
    """A concierge in Japanese: names, times and rooms, several offers, a change of mind, a rule that must hold."""
    rooms = [{"部屋番号": f"{n}0{m}", "種類": "和室" if m % 2 else "洋室", "定員": m + 1, "料金": 12000 + n * 1500 + m * 800, "禁煙": True} for n in range(2, 7) for m in range(1, 4)]  # fmt: skip
    log = "\n".join(f"06月{n}日 {9 + n % 9}:30 {'満席' if n % 4 else '空席あり'} 展望レストラン" for n in range(10, 30))
    return _session(
        "booking",
        user("来月の14日から2泊、家族4人で予約したいです。会員番号はM-204817です。妻が甲殻類アレルギーなので、夕食には必ず伝えてください。"),
        call("会員照会", {"会員番号": "M-204817", "氏名": "高橋 健", "同伴者": [{"氏名": "高橋 由美", "続柄": "妻"}, {"氏名": "高橋 蓮", "続柄": "長男"}], "電話": "090-5550-1384"}, 会員番号="M-204817"),
        call("空室検索", rooms, 到着日="2026-06-14", 泊数="2"),
        reply("401号室の和室（18,800円）と503号室の洋室（21,900円）が空いています。どちらになさいますか？"),
        user("和室でお願いします。できれば高い階がいいです。"),
        call("予約作成", "エラー：401号室は14日のみ満室です。601号室をご検討ください。", 部屋番号="401", 到着日="2026-06-14", 会員番号="M-204817"),
        reply("申し訳ございません。401号室は14日が満室でした。601号室の和室（21,800円）ならご用意できます。よろしいですか？"),
        user("はい、お願いします。"),
        call("予約作成", {"予約番号": "YK-660913", "部屋番号": "601", "状態": "仮予約"}, 部屋番号="601", 到着日="2026-06-14", 会員番号="M-204817"),
        call("食事検索", log, 月="2026-06"),
        reply("夕食は展望レストランを16日19時で承れます。アレルギーの件も伝えます。"),
        user("16日は帰る日なので、15日にしてください。時間は18時半で。"),
        call("食事予約", {"食事番号": "SJ-1187", "日時": "2026-06-15 18:30", "備考": "甲殻類アレルギー（由美様）"}, 予約番号="YK-660913", 日時="2026-06-15 18:30"),
        call("予約照会", {"予約番号": "YK-660913", "部屋番号": "601", "状態": "確定", "合計": 43600}, 予約番号="YK-660913"),
        reply("ご予約が確定しました。送迎バスもご利用になりますか？"),
        user("いいえ、車で行きます。ナンバーは品川330 さ 12-48です。駐車場をお願いします。"),
        call("駐車場予約", {"区画": "P2-17", "状態": "確保"}, 予約番号="YK-660913", 車両="品川330 さ 12-48"),
        call("確認送信", "送信済み", 会員番号="M-204817", 予約番号="YK-660913", 食事番号="SJ-1187", 区画="P2-17", 電話="090-5550-1384"),
    )  # fmt: skip


def sessions() -> list[Recording]:
    """Return all sessions."""
    return [
        coding(),
        operations(),
        research(),
        retail(),
        telecom(),
        german(),
        chinese(),
        analysis(),
        returns(),
        cleaning(),
        booking(),
    ]
