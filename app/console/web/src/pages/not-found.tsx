import { Link } from "wouter";
import { Page } from "../components/page";

export function NotFound() {
  return (
    <Page title="No such page">
      <p>
        The address is not a page of the console, or a page that your key may not see.{" "}
        <Link href="/">Go to the start</Link>.
      </p>
    </Page>
  );
}
