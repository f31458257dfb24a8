"""The record of webhooks."""

from __future__ import annotations

from service.dashboard.extensions import AdminEntry
from service.features.feature import Feature
from service.features.webhooks import endpoints, page_routes
from service.features.webhooks.announcing import TEST, queue_deliveries
from service.features.webhooks.courier import courier_of
from service.features.webhooks.page import failing_webhooks
from service.features.webhooks.settings import WebhookSettings
from service.people.permissions import READ, SUBMIT, Rule

WEBHOOKS = Feature(
    name="webhooks",
    routers=(endpoints.router, page_routes.router),
    permissions={
        "POST /webhooks": SUBMIT,
        "GET /webhooks": READ,
        "DELETE /webhooks/{webhook_id}": Rule("submit", "webhook"),
        "GET /webhooks/{webhook_id}/deliveries": Rule("read", "webhook"),
        "POST /webhooks/{webhook_id}/test": Rule("submit", "webhook"),
        "GET /dashboard/admin/webhooks": READ,
        "POST /dashboard/admin/webhooks": SUBMIT,
        "POST /dashboard/admin/webhooks/{webhook_id}/remove": Rule("submit", "webhook"),
        "POST /dashboard/admin/webhooks/{webhook_id}/test": Rule("submit", "webhook"),
    },
    settings=WebhookSettings,
    events=(TEST,),
    listeners=(queue_deliveries,),
    services=(courier_of,),
    admin_pages=(AdminEntry("webhooks", "Webhooks", "Who is told when something ends, and how that goes."),),
    concerns=(failing_webhooks,),
)
