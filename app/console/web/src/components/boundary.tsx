import { Component, type ReactNode } from "react";
import { ErrorNotice } from "./error-notice";

/** Show an error of the page instead of an empty window. */
export class Boundary extends Component<{ children: ReactNode }, { error: unknown }> {
  override state: { error: unknown } = { error: null };

  static getDerivedStateFromError(error: unknown): { error: unknown } {
    return { error };
  }

  override render(): ReactNode {
    if (this.state.error === null) return this.props.children;
    return (
      <main id="content">
        <h1>The page failed</h1>
        <ErrorNotice error={this.state.error} onRetry={() => this.setState({ error: null })} />
      </main>
    );
  }
}
