import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useLocation, useRoute } from "wouter";
import { PLATFORM_MENU, TENANT_MENU } from "../pages/menu";
import { to } from "../lib/links";
import { endSession, useMe } from "../session";
import { ServerState } from "./server-state";
import { ThemeButton } from "./theme-button";

export function Navigation() {
  const { key, isPlatform, server } = useMe();
  const [open, setOpen] = useState(false);
  const [, params] = useRoute("/t/:tenant/*");
  const client = useQueryClient();
  const tenant = params?.tenant ?? key.tenant;

  return (
    <header className="top">
      <div className="brand">
        <Link href="/">Tenora</Link>
        <button
          type="button"
          className="menu-button"
          aria-expanded={open}
          aria-controls="menu"
          onClick={() => setOpen(!open)}
        >
          Menu
        </button>
      </div>
      <nav id="menu" aria-label="Pages" className={open ? "open" : undefined} onClick={() => setOpen(false)}>
        {isPlatform && <Menu title="Platform" items={PLATFORM_MENU.map(([text, path]) => [text, path] as const)} />}
        {tenant !== null && (
          <Menu title={tenant} items={TENANT_MENU.map(([text, page]) => [text, to.page(tenant, page)] as const)} />
        )}
      </nav>
      <div className="account">
        <ServerState />
        <p className="quiet">
          <span>{key.name}</span>
          <br />
          {server.base.name} · {server.version}
        </p>
        <ThemeButton />
        <button type="button" className="small" onClick={() => void endSession(client)}>
          Sign out
        </button>
      </div>
    </header>
  );
}

function Menu({ title, items }: { title: string; items: readonly (readonly [text: string, path: string])[] }) {
  const [location] = useLocation();
  return (
    <section>
      <h2>{title}</h2>
      <ul>
        {items.map(([text, path]) => (
          <li key={path}>
            <Link href={path} aria-current={isCurrent(location, path) ? "page" : undefined}>
              {text}
            </Link>
          </li>
        ))}
      </ul>
    </section>
  );
}

function isCurrent(location: string, path: string): boolean {
  return location === path || (path !== "/" && location.startsWith(`${path}/`));
}
