import { type ComponentType } from "react";
import { Redirect, Route, Router, Switch } from "wouter";
import { Boundary } from "./components/boundary";
import { Navigation } from "./components/navigation";
import { to } from "./lib/links";
import { NotFound } from "./pages/not-found";
import { PLATFORM_PAGES, TENANT_PAGES } from "./pages";
import { EventsProvider } from "./events";
import { useIdleEnd } from "./idle-end";
import { useMe } from "./session";

export function App() {
  useIdleEnd();
  return (
    <Router base="/console">
      <a className="skip" href="#content">
        Skip to the content
      </a>
      <EventsProvider>
        <Navigation />
        <Pages />
      </EventsProvider>
    </Router>
  );
}

function Pages() {
  const { isPlatform, key } = useMe();
  return (
    <Switch>
      {isPlatform && PLATFORM_PAGES.map(({ path, page }) => route(path, page))}
      {TENANT_PAGES.map(({ path, page }) => route(path, page))}
      {!isPlatform && key.tenant !== null && (
        <Route path="/">
          <Redirect to={to.adapters(key.tenant)} replace />
        </Route>
      )}
      <Route>
        <NotFound />
      </Route>
    </Switch>
  );
}

function route(path: string, Content: ComponentType) {
  return (
    <Route key={path} path={path}>
      {(params) => (
        // Another tenant or adapter is another page: it begins without the state of the one before.
        <Boundary key={JSON.stringify(params)}>
          <Content />
        </Boundary>
      )}
    </Route>
  );
}
