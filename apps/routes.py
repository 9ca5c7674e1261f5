"""Addresses that the server knows besides the apps: /book without its slash leads to the book."""

from tornado.web import RedirectHandler

ROUTES = [("/book", RedirectHandler, {"url": "/book/", "permanent": False})]
